"""`python -m training`: from nothing to the weights of the pocket model."""

from __future__ import annotations

import argparse
from pathlib import Path

from training import distributed
from training.recipe import STAGES, follow


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/pocket"), help="scenes and checkpoints (about 5 GB)")
    parser.add_argument("--weights", type=Path, help="where the finished model goes; default: <out>/weights")
    parser.add_argument("--only", nargs="+", choices=STAGES, help="these stages alone; others are read if finished")
    parser.add_argument("--workers", type=int, default=2, help="the same number gives the same weights")
    options = parser.parse_args()
    stages = tuple(options.only or STAGES)
    distributed.run(options.workers, follow, stages, options.out, options.weights or options.out / "weights")


if __name__ == "__main__":
    main()
