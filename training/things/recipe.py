"""The training recipe of the models for the world of things, in stages of at most two and a half hours on two cores."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from eadp.pocket.things.model import build_clip_text, build_tower
from training import distributed
from training.optimize import Stage
from training.things import clip, tower
from training.things.text import encode_captions, world_tokenizer, write_captions
from training.things.windows import WINDOWS_PER_SCENE, augment, draw_scenes, draw_windows, drop_background

STAGES = ("vision",)
VISION_STEPS = 3_000
WINDOW_SHARE = 0.8
"""Share of the steps of the vision stage, the first ones, that see windows; the rest sees whole scenes."""

WINDOWS, WINDOW_KEPT = 64, 36
SCENES, SCENE_KEPT = 16, 240
"""Windows or scenes per step, and patches of each that are encoded: all that show a thing, and some background."""

CHECKPOINT_EVERY = 100
VALIDATION_SCENES = 160
VALIDATION_BATCH = 16


def run_stages(stages: tuple[str, ...], out: Path, steps: int | None = None) -> None:
    """Train the given stages in their order, as one of the workers. Stages before them are loaded from checkpoints.

    Args:
        stages: The stages.
        out: Folder for checkpoints and curves.
        steps: Steps of each stage, if not those of the recipe. The learning rate falls over the last third of them.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), disable=distributed.rank() > 0) as progress:
        recipe = Recipe(out, progress, steps)
        for stage in STAGES[: 1 + max(map(STAGES.index, stages))]:
            getattr(recipe, stage)(train=stage in stages)


class Recipe:
    """The modules and the stages of the training. Each stage is a method of the same name."""

    def __init__(self, out: Path, progress: Progress, steps: int | None = None) -> None:
        self.out, self.progress, self.steps = out, progress, steps
        out.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        self.tower = build_tower()
        self.heads = tower.PatchHeads()
        self.text = build_clip_text(len(self.tokenizer))
        self.temperatures = clip.Temperatures()

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer, trained once and stored."""
        folder = self.out / "tokenizer"

        def load() -> PreTrainedTokenizerFast:
            if not folder.exists():
                world_tokenizer().save_pretrained(folder)
            return PreTrainedTokenizerFast.from_pretrained(folder)

        return distributed.first_worker_first(load)

    def vision(self, train: bool) -> None:
        """Train the tower on what every patch shows, and tower and text encoder on captions: windows, then scenes."""
        steps = self.steps or VISION_STEPS
        modules = {"tower": self.tower, "heads": self.heads, "clip": self.text, "temperatures": self.temperatures}
        stage = Stage("vision", self.out, modules, steps, lr=2e-3)

        def step(number: int) -> dict[str, Tensor]:
            whole = number >= WINDOW_SHARE * steps
            turn = number * distributed.size() + distributed.rank()
            scenes = (SCENES if whole else WINDOWS // WINDOWS_PER_SCENE) // distributed.size()
            batch = (draw_scenes if whole else draw_windows)("train", turn * scenes, scenes)
            captions = write_captions(batch.views, np.random.default_rng((3, turn)))
            pixels = augment(batch.pixels)
            batch, keep = drop_background(batch, SCENE_KEPT if whole else WINDOW_KEPT)
            normed = tower.encode(self.tower, pixels, batch.positions, keep)
            losses = tower.patch_losses(self.heads, normed[:, 1:], batch)
            ids = encode_captions(self.tokenizer, captions)
            return losses | clip.caption_losses(self.text, self.temperatures, normed, ids)

        if train:
            stage.run(self.progress, step, CHECKPOINT_EVERY, self._measure_vision)
        else:
            stage.load_checkpoint()

    @torch.no_grad()
    def _measure_vision(self) -> dict[str, float]:
        tally = tower.Tally()
        for first in range(0, VALIDATION_SCENES, VALIDATION_BATCH):
            batch = draw_windows("validation", first, VALIDATION_BATCH)
            normed = tower.encode(self.tower, batch.pixels, batch.positions)
            tower.tally_patches(tally, self.heads, normed, batch)
            clip.tally_captions(tally, self.text, self.tokenizer, normed, batch, first)
        return tally.percentages()
