"""The training recipe of the models for the world of things, in stages of at most two and a half hours on two cores."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from eadp.pocket import smol
from eadp.pocket.things.model import build_clip_text, build_tower
from eadp.pocket.things.questions import KINDS
from training import distributed
from training.language import choose_patches, gather_tokens
from training.optimize import Stage
from training.things import clip, results, tower
from training.things.reader import EASY, Reader
from training.things.text import encode_captions, world_tokenizer, write_captions
from training.things.windows import WINDOWS_PER_SCENE, Patches, augment, draw_scenes, draw_windows, drop_background

STAGES = ("vision", "read", "project", "tune")
"""`vision` is for both models; the other stages are for the one with SmolLM2."""

VISION_STEPS = 7_000
CAPTIONS_FROM = 0.25
"""Share of the steps of the vision stage after which captions are learnt. Before, a tower that sees nothing yet would
learn only to tell backgrounds apart."""

WINDOW_SHARE = 0.8
"""Share of the steps of the vision stage, the first ones, that see windows; the rest sees whole scenes."""

WINDOWS, WINDOW_KEPT = 64, 36
SCENES, SCENE_KEPT = 16, 240
"""Windows or scenes per step, and patches of each that are encoded: all that show a thing, and some background."""

READ_STEPS, EASY_SHARE = 750, 0.3
"""Steps of the read stage, and the share of them, the first ones, with easy questions: what is there, and where."""

READ_KEPT = 64
PROJECT_STEPS, PROJECT_BATCH = 400, 16
TUNE_STEPS = 500
TUNE_KEPT = (32, 64, 64, 96, 160)
"""Numbers of visual tokens that stay in a batch, one of them at random, to prepare the model for pruning."""

ANSWER_SCENES, ACCUMULATE = 4, 2
"""Scenes per batch and worker, and batches per step: with two workers, a step has sixteen scenes."""

CHECKPOINT_EVERY, MEASURE_EVERY = 50, 200
VALIDATION_SCENES, WHOLE_SCENES, ANSWER_VALIDATION = 160, 48, 48
"""Validation scenes whose windows are measured, that are measured as a whole, and about which questions are asked."""

VALIDATION_BATCH = 16
ANSWER_FIRST_SCENE = 1_000_000
"""The first training scene of the stages after the vision stage."""


def run_stages(stages: tuple[str, ...], out: Path, steps: int | None = None, warm_start: bool = False) -> None:
    """Train the given stages in their order, as one of the workers.

    Stages before them are loaded from their checkpoints in `out`, or else from the results that the repository holds.

    Args:
        stages: The stages.
        out: Folder for checkpoints and curves.
        steps: Steps of each stage, if not those of the recipe. The learning rate falls over the last third of them.
        warm_start: Start a stage that has no checkpoint from the result that the repository holds, not from nothing.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), disable=distributed.rank() > 0) as progress:
        recipe = Recipe(out, progress, steps, warm_start)
        for stage in STAGES[: 1 + max(map(STAGES.index, stages))]:
            getattr(recipe, stage)(train=stage in stages)


class Recipe:
    """The modules and the stages of the training. Each stage is a method of the same name."""

    def __init__(self, out: Path, progress: Progress, steps: int | None = None, warm_start: bool = False) -> None:
        self.out, self.progress, self.steps, self.warm_start = out, progress, steps, warm_start
        out.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        self.tower = build_tower()
        self.heads = tower.PatchHeads()
        self.text = build_clip_text(len(self.tokenizer))
        self.temperatures = clip.Temperatures()

    @cached_property
    def reader(self) -> Reader:
        """SmolLM2, frozen, and what is trained around it, with the same initial weights in every worker."""
        torch.manual_seed(1)
        return Reader(*smol.load_language_model())

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer of the text encoder: the stored one, or a new one if there is none."""
        folder = self.out / "tokenizer"

        def load() -> PreTrainedTokenizerFast:
            if not folder.exists():
                (results.load_tokenizer() or world_tokenizer()).save_pretrained(folder)
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
            normed = self.tower.post_layernorm(tower.encode(self.tower, pixels, batch.positions, keep))
            losses = tower.patch_losses(self.heads, normed[:, 1:], batch)
            if number < CAPTIONS_FROM * steps:
                return losses
            ids = encode_captions(self.tokenizer, captions)
            return losses | clip.caption_losses(self.text, self.temperatures, normed, ids)

        self._train(stage, step, self._measure_vision, train)

    def read(self, train: bool) -> None:
        """Train a LoRA of SmolLM2 to answer questions from visual words, the output of an ideal projector."""
        steps = self.steps or READ_STEPS
        stage = Stage("read", self.out, {"lora": self.reader.lora}, steps, lr=5e-4, accumulate=ACCUMULATE)

        def step(number: int) -> dict[str, Tensor]:
            kinds = EASY if number < EASY_SHARE * steps * ACCUMULATE else KINDS
            batch = self._draw_scenes(number, ANSWER_SCENES)
            keep = choose_patches(batch.owners, READ_KEPT, guided=True)
            return self.reader.losses(self.reader.noisy_words(batch, keep), keep, batch, kinds, number)

        def measure() -> dict[str, float]:
            return self._measure_answers(lambda batch, keep: self.reader.noisy_words(batch, keep))

        self._train(stage, step, measure, train)

    def project(self, train: bool) -> None:
        """Train the projector alone, to turn the tower's output into visual words."""
        stage = Stage("project", self.out, {"projector": self.reader.projector}, self.steps or PROJECT_STEPS, lr=2e-3)

        def step(number: int) -> dict[str, Tensor]:
            batch = self._draw_scenes(number, PROJECT_BATCH // distributed.size())
            return {"projection": self.reader.projection_loss(self._features(batch), batch)}

        self._train(stage, step, None, train)

    def tune(self, train: bool) -> None:
        """Train projector and LoRA together on what the tower sees, with most visual tokens dropped."""
        modules = {"projector": self.reader.projector, "lora": self.reader.lora}
        stage = Stage("tune", self.out, modules, self.steps or TUNE_STEPS, lr=2e-4, accumulate=ACCUMULATE)

        def see(batch: Patches, keep: Tensor) -> Tensor:
            return self.reader.projector(gather_tokens(self._features(batch), keep))

        def step(number: int) -> dict[str, Tensor]:
            kept = int(np.random.default_rng((4, number)).choice(TUNE_KEPT))
            batch = self._draw_scenes(number, ANSWER_SCENES)
            keep = choose_patches(batch.owners, kept, guided=True)
            return self.reader.losses(see(batch, keep), keep, batch, KINDS, number)

        self._train(stage, step, lambda: self._measure_answers(see), train)

    def _train(
        self,
        stage: Stage,
        step: Callable[[int], dict[str, Tensor]],
        measure: Callable[[], dict[str, float]] | None,
        train: bool,
    ) -> None:
        if train:
            if self.warm_start and not stage.file.exists():
                results.load(stage.name, stage.modules)
            stage.run(self.progress, step, CHECKPOINT_EVERY, measure, MEASURE_EVERY)
        elif stage.file.exists():
            stage.load_checkpoint()
        else:
            results.load(stage.name, stage.modules)

    def _draw_scenes(self, number: int, scenes: int) -> Patches:
        turn = number * distributed.size() + distributed.rank()
        return draw_scenes("train", ANSWER_FIRST_SCENE + turn * scenes, scenes)

    @torch.no_grad()
    def _features(self, batch: Patches) -> Tensor:
        return tower.encode(self.tower, batch.pixels, batch.positions)[:, 1:]

    @torch.no_grad()
    def _measure_answers(self, see: Callable[[Patches, Tensor], Tensor]) -> dict[str, float]:
        torch.manual_seed(0)
        tally = tower.Tally()
        for first in range(0, ANSWER_VALIDATION, ANSWER_SCENES):
            batch = draw_scenes("validation", first, ANSWER_SCENES)
            keep = choose_patches(batch.owners, READ_KEPT, guided=True)
            self.reader.tally_answers(tally, see(batch, keep), keep, batch, first)
        return tally.percentages()

    @torch.no_grad()
    def _measure_vision(self) -> dict[str, float]:
        """Measure on windows, and on some whole scenes, whose measures begin with `scene_`."""
        windows, scenes = tower.Tally(), tower.Tally()
        for first in range(0, VALIDATION_SCENES, VALIDATION_BATCH):
            self._tally_vision(windows, draw_windows("validation", first, VALIDATION_BATCH), first)
        for first in range(0, WHOLE_SCENES, VALIDATION_BATCH):
            self._tally_vision(scenes, draw_scenes("validation", first, VALIDATION_BATCH), first)
        return windows.percentages() | {f"scene_{name}": value for name, value in scenes.percentages().items()}

    def _tally_vision(self, tally: tower.Tally, batch: Patches, seed: int) -> None:
        normed = self.tower.post_layernorm(tower.encode(self.tower, batch.pixels, batch.positions))
        tower.tally_patches(tally, self.heads, normed, batch)
        clip.tally_captions(tally, self.text, self.tokenizer, normed, batch, seed)
