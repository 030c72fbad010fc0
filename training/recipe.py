"""The training recipe, a small version of LLaVA's: which stage trains which modules, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from eadp.pocket import storage
from eadp.pocket.model import GRID, WIDTH, build_clip_text, build_llava, build_processor, encode_patches
from training import distributed, language, vision
from training.data import Corpus, load_corpus, world_tokenizer
from training.optimize import Stage, batch_rows

STAGES = ("vision", "words", "project", "tune", "save")
SCENES = 81_920
VISION_STEPS = 1_800
VISION_SPARSE_STEPS = 1_500
"""Steps at the start of the vision stage in which the tower encodes only some of the patches."""

WORDS_STEPS, WORDS_KEPT = 1_500, 32
FEATURE_SCENES = 12_288
"""Scenes whose features are computed once, for the stages after the vision stage."""

PROJECT_STEPS = 400
TUNE_STEPS, TUNE_BATCH = 2_400, 32
TUNE_KEPT = (32, 48, 64, 96, 160, 256, 256)
"""Numbers of visual tokens that stay in a step, one of them at random, to prepare the model for pruning."""


def run_stages(stages: tuple[str, ...], out: Path, weights: Path) -> None:
    """Train the given stages in their order, as one of the workers. Stages before them are loaded from checkpoints."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), disable=distributed.rank() > 0) as progress:
        recipe = Recipe(out, weights, progress, stages)
        for stage in STAGES[: 1 + max(map(STAGES.index, stages))]:
            getattr(recipe, stage)()


class Recipe:
    """The modules and the stages of the training. Each stage is a method of the same name."""

    def __init__(self, out: Path, weights: Path, progress: Progress, stages: tuple[str, ...] = STAGES) -> None:
        self.out, self.weights, self.progress, self.stages = out, weights, progress, stages
        out.mkdir(parents=True, exist_ok=True)
        self.tokenizer = world_tokenizer()
        torch.manual_seed(0)
        self.model = build_llava(len(self.tokenizer))
        self.clip = build_clip_text(len(self.tokenizer))
        self.tower = self.model.model.vision_tower
        self.projector = self.model.model.multi_modal_projector
        self.language = self.model.model.language_model
        self.heads = vision.PatchHeads()
        self.word_tokens = language.WordTokens(self.language.embed_tokens, self.tokenizer)
        self.pointing = language.PointingHead()
        self.packer = language.Packer(self.tokenizer)

    def vision(self) -> None:
        """Train the vision tower together with CLIP's text encoder and linear heads per patch."""
        modules = {"tower": self.tower, "clip": self.clip, "heads": self.heads}

        def step(number: int) -> dict[str, Tensor]:
            rows = batch_rows(number, vision.BATCH, len(self.corpus))
            sparse = number < VISION_SPARSE_STEPS
            return vision.vision_losses(self.tower, self.clip, self.heads, self.corpus, rows, sparse)

        self._train(Stage("vision", self.out, modules, VISION_STEPS, lr=2e-3), step)

    def words(self) -> None:
        """Train the language model alone, on questions about scenes that are encoded as words."""

        def step(number: int) -> dict[str, Tensor]:
            rows = batch_rows(number, language.BATCH, len(self.corpus))
            owners = self._owners(rows)
            keep = language.choose_patches(owners, WORDS_KEPT, guided=True)
            visual = language.gather_tokens(self.word_tokens(owners, self._things(rows)), keep)
            return self._answer_losses(number, rows, visual, keep)

        modules = {"language": self.language, "in_words": self.word_tokens, "pointing": self.pointing}
        self._train(Stage("words", self.out, modules, WORDS_STEPS, lr=2e-3), step)

    def project(self) -> None:
        """Train the projector alone, to turn the tower's features into the word tokens."""

        def step(number: int) -> dict[str, Tensor]:
            rows = batch_rows(number, language.BATCH, FEATURE_SCENES)
            owners = self._owners(rows)
            with torch.no_grad():
                target = self.word_tokens(owners, self._things(rows))
            error = F.mse_loss(self.projector(self._features(rows)), target, reduction="none").mean(-1)
            shown = owners >= 0
            return {"projection": (error[shown].mean() + error[~shown].mean()) / target.var()}

        self._train(Stage("project", self.out, {"projector": self.projector}, PROJECT_STEPS, lr=3e-3), step)

    def tune(self) -> None:
        """Train projector and language model together, with most visual tokens dropped and positions kept."""

        def step(number: int) -> dict[str, Tensor]:
            rows = batch_rows(number, TUNE_BATCH, FEATURE_SCENES)
            rng = np.random.default_rng((2, number))
            kept = int(rng.choice(TUNE_KEPT))
            keep = language.choose_patches(self._owners(rows), kept, guided=kept < 64 or rng.random() < 0.5)
            visual = self.projector(language.gather_tokens(self._features(rows), keep))
            return self._answer_losses(number, rows, visual, keep)

        modules = {"projector": self.projector, "language": self.language, "pointing": self.pointing}
        self._train(Stage("tune", self.out, modules, TUNE_STEPS, lr=1e-3), step)

    def _train(self, stage: Stage, step: Callable[[int], dict[str, Tensor]]) -> None:
        if stage.name in self.stages:
            stage.run(self.progress, step)
        else:
            stage.load_checkpoint()

    def save(self) -> None:
        """Write the finished model."""
        if distributed.rank() > 0:
            return
        storage.save(self.weights, self.model, build_processor(self.tokenizer), self.clip)
        self.progress.console.print(f"the pocket model is in {self.weights}")

    @cached_property
    def corpus(self) -> Corpus:
        """The training scenes."""
        load = partial(load_corpus, self.out / "scenes", SCENES, self.tokenizer, self.progress, distributed.size())
        return distributed.first_worker_first(load)

    @cached_property
    def features(self) -> NDArray[np.float16]:
        """FEATURE_SCENES×GRID²×d, the output of the trained tower, computed once and stored."""
        file = self.out / "features.npy"
        if not file.exists():
            mine = np.array_split(np.arange(FEATURE_SCENES), distributed.size())[distributed.rank()]
            features = torch.empty(len(mine), GRID * GRID, WIDTH, dtype=torch.float16)
            task = self.progress.add_task("encode scenes", total=len(mine))
            with torch.no_grad():
                for rows in np.array_split(np.arange(len(mine)), len(mine) // vision.BATCH):
                    hidden = encode_patches(self.tower, vision.normalize_pixels(self.corpus.images[mine[rows]]))
                    features[rows] = hidden[:, 1:].half()
                    self.progress.advance(task, len(rows))
            distributed.write_concatenated(file, features.numpy())
        return np.load(file, mmap_mode="r")

    def _features(self, rows: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(self.features[rows]).float()

    def _owners(self, rows: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(self.corpus.owners[rows]).long()

    def _things(self, rows: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(self.corpus.things[rows]).long()

    def _answer_losses(self, number: int, rows: NDArray[np.int64], visual: Tensor, keep: Tensor) -> dict[str, Tensor]:
        text = self.packer.text(self.corpus, rows, np.random.default_rng((1, number)))
        loss, right, states = self.packer.loss(self.model, visual, keep, text)
        *_, targets, previous = text
        pointing = self.pointing.loss(states, targets, self._things(rows), previous)
        return {"answer": loss, "pointing": 0.5 * pointing, "right": right}
