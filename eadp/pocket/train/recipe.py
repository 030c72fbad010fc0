"""The recipe: which stage trains what, for how long."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor

from eadp.pocket.model import new_clip_text, new_llava
from eadp.pocket.train import language, vision
from eadp.pocket.train.data import Corpus, corpus, world_tokenizer
from eadp.pocket.train.optimize import Stage, batch_rows

STAGES = ("vision", "words")
SCENES = 81_920
VISION_STEPS, VISION_FEW = 1_800, 1_500
WORDS_STEPS, WORDS_KEPT = 3_000, 32


class Recipe:
    def __init__(self, out: Path, weights: Path, progress: Progress, workers: int) -> None:
        self.out, self.weights, self.progress, self.workers = out, weights, progress, workers
        out.mkdir(parents=True, exist_ok=True)
        self.tokenizer = world_tokenizer()
        torch.manual_seed(0)
        self.model = new_llava(len(self.tokenizer))
        self.clip = new_clip_text(len(self.tokenizer))
        self.tower = self.model.model.vision_tower
        self.language = self.model.model.language_model
        self.in_words = language.SceneInWords(self.language.embed_tokens, self.tokenizer)
        self.packer = language.Packer(self.tokenizer)

    @cached_property
    def corpus(self) -> Corpus:
        return corpus(self.out / "scenes", SCENES, self.tokenizer, self.progress, self.workers)

    def vision(self) -> None:
        heads = vision.PatchHeads()
        stage = Stage(
            "vision", self.out, {"tower": self.tower, "clip": self.clip, "heads": heads}, VISION_STEPS, lr=2e-3
        )

        def step(number: int) -> dict[str, Tensor]:
            rows = batch_rows(number, vision.BATCH, len(self.corpus))
            return vision.vision_losses(self.tower, self.clip, heads, self.corpus, rows, few=number < VISION_FEW)

        stage.run(self.progress, step)

    def words(self) -> None:
        """The language model alone: scenes written as words, patch by patch, and questions about them."""
        modules = {"language": self.language, "in_words": self.in_words}
        stage = Stage("words", self.out, modules, WORDS_STEPS, lr=2e-3)

        def step(number: int) -> dict[str, Tensor]:
            rows = batch_rows(number, language.BATCH, len(self.corpus))
            owners, things = (torch.from_numpy(part[rows]).long() for part in (self.corpus.owners, self.corpus.things))
            keep = language.choose(owners, WORDS_KEPT, guided=True)
            visual = language.take(self.in_words(owners, things), keep)
            text = self.packer.text(self.corpus, rows, np.random.default_rng((1, number)))
            loss, right = self.packer.loss(self.model, visual, keep, text)
            return {"answer": loss, "right": right}

        stage.run(self.progress, step)
