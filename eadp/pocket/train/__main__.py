"""`python -m eadp.pocket.train`: from nothing to the weights of the pocket model."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from eadp.pocket.train.recipe import STAGES, Recipe


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m eadp.pocket.train", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/pocket"), help="scenes and checkpoints (about 5 GB)")
    parser.add_argument("--weights", type=Path, help="where the finished model goes; default: <out>/weights")
    parser.add_argument("--only", nargs="+", choices=STAGES, help="these stages alone")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as progress:
        recipe = Recipe(options.out, options.weights or options.out / "weights", progress, options.threads)
        for stage in options.only or STAGES:
            getattr(recipe, stage)()


if __name__ == "__main__":
    main()
