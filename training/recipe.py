"""The recipe, LLaVA's own in small: which stage trains what, for how long."""

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
from eadp.pocket.model import GRID, WIDTH, new_clip_text, new_llava, new_processor, see
from training import distributed, language, vision
from training.data import Corpus, corpus, world_tokenizer
from training.optimize import Stage, batch_rows

STAGES = ("vision", "words", "project", "tune", "save")
SCENES = 81_920
VISION_STEPS, VISION_FEW = 1_800, 1_500
WORDS_STEPS, WORDS_KEPT = 1_500, 32
SEEN = 12_288
"""Scenes whose features are computed once, for the stages after the tower's."""

PROJECT_STEPS = 400
TUNE_STEPS, TUNE_BATCH = 2_400, 32
TUNE_KEPT = (32, 48, 64, 96, 160, 256, 256)
"""How many visual tokens stay in a step, drawn at random: as pruning will leave them."""


def follow(stages: tuple[str, ...], out: Path, weights: Path) -> None:
    """The stages in their order, as one of the workers; of those not asked for, what they left is read."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), disable=distributed.rank() > 0) as progress:
        recipe = Recipe(out, weights, progress, stages)
        for stage in STAGES[: 1 + max(map(STAGES.index, stages))]:
            getattr(recipe, stage)()


class Recipe:
    def __init__(self, out: Path, weights: Path, progress: Progress, stages: tuple[str, ...] = STAGES) -> None:
        self.out, self.weights, self.progress, self.stages = out, weights, progress, stages
        out.mkdir(parents=True, exist_ok=True)
        self.tokenizer = world_tokenizer()
        torch.manual_seed(0)
        self.model = new_llava(len(self.tokenizer))
        self.clip = new_clip_text(len(self.tokenizer))
        self.tower = self.model.model.vision_tower
        self.projector = self.model.model.multi_modal_projector
        self.language = self.model.model.language_model
        self.heads = vision.PatchHeads()
        self.in_words = language.SceneInWords(self.language.embed_tokens, self.tokenizer)
        self.pointing = language.Pointing()
        self.packer = language.Packer(self.tokenizer)

    def vision(self) -> None:
        """The tower, with what it needs to be asked: CLIP's text side and a linear head."""
        modules = {"tower": self.tower, "clip": self.clip, "heads": self.heads}

        def step(number: int) -> dict[str, Tensor]:
            rows = batch_rows(number, vision.BATCH, len(self.corpus))
            few = number < VISION_FEW
            return vision.vision_losses(self.tower, self.clip, self.heads, self.corpus, rows, few)

        self._train(Stage("vision", self.out, modules, VISION_STEPS, lr=2e-3), step)

    def words(self) -> None:
        """The language model alone: scenes written as words, patch by patch, and questions about them."""

        def step(number: int) -> dict[str, Tensor]:
            rows = batch_rows(number, language.BATCH, len(self.corpus))
            owners = self._owners(rows)
            keep = language.choose(owners, WORDS_KEPT, guided=True)
            visual = language.take(self.in_words(owners, self._things(rows)), keep)
            return self._answer(number, rows, visual, keep)

        modules = {"language": self.language, "in_words": self.in_words, "pointing": self.pointing}
        self._train(Stage("words", self.out, modules, WORDS_STEPS, lr=2e-3), step)

    def project(self) -> None:
        """The projector alone: visual tokens are to say to the language model what the words said."""

        def step(number: int) -> dict[str, Tensor]:
            rows = batch_rows(number, language.BATCH, SEEN)
            owners = self._owners(rows)
            with torch.no_grad():
                said = self.in_words(owners, self._things(rows))
            error = F.mse_loss(self.projector(self._features(rows)), said, reduction="none").mean(-1)
            shown = owners >= 0
            return {"said": (error[shown].mean() + error[~shown].mean()) / said.var()}

        self._train(Stage("project", self.out, {"projector": self.projector}, PROJECT_STEPS, lr=3e-3), step)

    def tune(self) -> None:
        """Projector and language model together, most visual tokens dropped, the rest where they were."""

        def step(number: int) -> dict[str, Tensor]:
            rows = batch_rows(number, TUNE_BATCH, SEEN)
            rng = np.random.default_rng((2, number))
            kept = int(rng.choice(TUNE_KEPT))
            keep = language.choose(self._owners(rows), kept, guided=kept < 64 or rng.random() < 0.5)
            visual = self.projector(language.take(self._features(rows), keep))
            return self._answer(number, rows, visual, keep)

        modules = {"projector": self.projector, "language": self.language, "pointing": self.pointing}
        self._train(Stage("tune", self.out, modules, TUNE_STEPS, lr=1e-3), step)

    def _train(self, stage: Stage, step: Callable[[int], dict[str, Tensor]]) -> None:
        if stage.name in self.stages:
            stage.run(self.progress, step)
        else:
            stage.read()

    def save(self) -> None:
        if distributed.rank() > 0:
            return
        storage.save(self.weights, self.model, new_processor(self.tokenizer), self.clip)
        self.progress.console.print(f"the pocket model is in {self.weights}")

    @cached_property
    def corpus(self) -> Corpus:
        draw = partial(corpus, self.out / "scenes", SCENES, self.tokenizer, self.progress, distributed.size())
        return distributed.first_alone(draw)

    @cached_property
    def features(self) -> NDArray[np.float16]:
        """SEEN×GRID²×d: what the trained tower sees, computed once."""
        file = self.out / "features.npy"
        if not file.exists():
            mine = np.array_split(np.arange(SEEN), distributed.size())[distributed.rank()]
            made = torch.empty(len(mine), GRID * GRID, WIDTH, dtype=torch.float16)
            task = self.progress.add_task("look at scenes", total=len(mine))
            with torch.no_grad():
                for rows in np.array_split(np.arange(len(mine)), len(mine) // vision.BATCH):
                    seen = see(self.tower, vision.pixels(self.corpus.images[mine[rows]]))
                    made[rows] = seen[:, 1:].half()
                    self.progress.advance(task, len(rows))
            distributed.write_together(file, made.numpy())
        return np.load(file, mmap_mode="r")

    def _features(self, rows: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(self.features[rows]).float()

    def _owners(self, rows: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(self.corpus.owners[rows]).long()

    def _things(self, rows: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(self.corpus.things[rows]).long()

    def _answer(self, number: int, rows: NDArray[np.int64], visual: Tensor, keep: Tensor) -> dict[str, Tensor]:
        text = self.packer.text(self.corpus, rows, np.random.default_rng((1, number)))
        loss, right, half_way = self.packer.loss(self.model, visual, keep, text)
        *_, aims, previous = text
        pointing = self.pointing.loss(half_way, aims, self._things(rows), previous)
        return {"answer": loss, "pointing": 0.5 * pointing, "right": right}
