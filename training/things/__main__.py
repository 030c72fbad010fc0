"""Train the models for the world of things from scratch: `python -m training.things`."""

from __future__ import annotations

import argparse
from pathlib import Path

from training import distributed
from training.things.recipe import MODELS, STAGES, run_stages


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.things", description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="smol", help="the model; both share the vision stage")
    parser.add_argument("--out", type=Path, default=Path("out/things"), help="folder for checkpoints and curves")
    parser.add_argument(
        "--only", nargs="+", choices=STAGES, help="train only these stages; others are loaded from their checkpoints"
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="number of processes; the same number gives the same weights"
    )
    parser.add_argument("--steps", type=int, help="steps of each stage, for a shorter or a longer training")
    parser.add_argument(
        "--warm-start", action="store_true", help="start from the results in training/things/results, not from nothing"
    )
    parser.add_argument(
        "--half",
        action="store_true",
        help="compute in bfloat16, which is faster on CPUs that have it",
    )
    options = parser.parse_args()
    stages = tuple(options.only or STAGES)
    distributed.run(
        options.workers,
        run_stages,
        options.model,
        stages,
        options.out,
        options.steps,
        options.warm_start,
        options.half,
    )


if __name__ == "__main__":
    main()
