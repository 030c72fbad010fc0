"""The training recipe of the models for the world of things, in stages of at most two and a half hours on two cores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from eadp.pocket.things.model import build_tower
from training import distributed
from training.optimize import Stage
from training.things import tower
from training.things.windows import WINDOWS_PER_SCENE, Patches, augment, draw_windows, drop_background

STAGES = ("tower",)
TOWER_STEPS, TOWER_BATCH, TOWER_KEPT = 2_400, 64, 44
"""Steps, windows per step, and patches per window that are encoded; most of the others show background."""

CHECKPOINT_EVERY = 200
VALIDATION_SCENES = 160


def run_stages(stages: tuple[str, ...], out: Path) -> None:
    """Train the given stages in their order, as one of the workers. Stages before them are loaded from checkpoints."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), disable=distributed.rank() > 0) as progress:
        recipe = Recipe(out, progress)
        for stage in STAGES[: 1 + max(map(STAGES.index, stages))]:
            getattr(recipe, stage)(train=stage in stages)


class Recipe:
    """The modules and the stages of the training. Each stage is a method of the same name."""

    def __init__(self, out: Path, progress: Progress) -> None:
        self.out, self.progress = out, progress
        out.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        self.vision = build_tower()
        self.heads = tower.PatchHeads()

    def tower(self, train: bool) -> None:
        """Train the vision tower and linear heads per patch, on windows."""
        stage = Stage("tower", self.out, {"tower": self.vision, "heads": self.heads}, TOWER_STEPS, lr=2e-3)
        scenes = TOWER_BATCH // WINDOWS_PER_SCENE // distributed.size()

        def step(number: int) -> dict[str, Tensor]:
            turn = number * distributed.size() + distributed.rank()
            batch = draw_windows("train", turn * scenes, scenes)
            pixels = augment(batch.pixels)
            batch, keep = drop_background(batch, TOWER_KEPT)
            normed = tower.encode(self.vision, pixels, batch.positions, keep)
            return tower.patch_losses(self.heads, normed[:, 1:], batch)

        def measure() -> dict[str, float]:
            return tower.evaluate(self.vision, self.heads, _validation_windows())

        if train:
            stage.run(self.progress, step, CHECKPOINT_EVERY, measure)
        else:
            stage.load_checkpoint()


def _validation_windows() -> Iterator[Patches]:
    for first in range(0, VALIDATION_SCENES, 16):
        yield draw_windows("validation", first, 16)
