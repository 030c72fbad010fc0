"""Train the pocket model from scratch: `python -m training`."""

from __future__ import annotations

import argparse
from pathlib import Path

from training import distributed
from training.recipe import STAGES, run_stages


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("out/pocket"), help="folder for scenes and checkpoints (about 5 GB)"
    )
    parser.add_argument("--weights", type=Path, help="folder for the finished model; default: <out>/weights")
    parser.add_argument(
        "--only", nargs="+", choices=STAGES, help="train only these stages; others are loaded from their checkpoints"
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="number of processes; the same number gives the same weights"
    )
    options = parser.parse_args()
    stages = tuple(options.only or STAGES)
    distributed.run(options.workers, run_stages, stages, options.out, options.weights or options.out / "weights")


if __name__ == "__main__":
    main()
