"""The training recipe of the models for the world of things, in stages of at most two and a half hours on two cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from eadp.pocket import smol
from eadp.pocket.names import SMOL, THINGS
from eadp.pocket.photo import load_tower
from eadp.pocket.things.model import build_clip_text, build_language_model, build_tower
from eadp.pocket.things.questions import KINDS, Question
from eadp.pocket.things.render import GRID
from training import distributed
from training.attention import attend_in_single_precision
from training.language import choose_patches, gather_tokens
from training.optimize import Stage
from training.things import clip, clips, results, tower
from training.things.crowds import draw_crowds
from training.things.lora import Lora
from training.things.packing import CHAT_ML, VICUNA
from training.things.photographs import Photographer, Photographs
from training.things.reader import EASY, Reader, describe, draw_questions
from training.things.text import encode_captions, world_tokenizer, write_captions
from training.things.windows import Patches, augment, draw_scenes, drop_background

STAGES = ("vision", "read", "project", "tune", "clips")
"""The result of `vision` is a part of both models; each model has its own results of the other stages."""

MODELS = (SMOL, THINGS)
"""The models by their language models: SmolLM2 with a LoRA, and a small Llama that is trained from nothing."""

VISION_STEPS = 14_000
VISION_LR, WARM_VISION_LR = 2e-3, 7e-4
"""Learning rates from nothing, and from a finished result: the full rate would undo what the last steps had refined."""

CAPTIONS_FROM, CAPTIONS_EVERY = 0.2, 4
"""Share of the steps of the vision stage after which captions are learnt, at every fourth step. Before, a tower that
sees nothing yet would learn only to tell backgrounds apart. Captions are learnt quickly, and
cost half as much again."""

CROWD_STEPS, LAST_CROWD_STEPS, TURN = 3, 1, 5
"""Of every five steps of the vision stage, the first ones see crowds, and the others whole scenes."""

LAST_STEPS, LAST_CHANGES = 1 / 3, 0.5
"""Share of the steps, the last ones, whose learning rate falls. They see fewer crowds, and images are changed half as
much. Things stay in styles that nobody drew: a last look at the drawn ones would teach which kinds each style has."""

CROWDS, CROWD_KEPT = 8, 50
SCENES, SCENE_KEPT = 16, 160
"""Crowds or scenes per step, and patches that are encoded of each window or scene: all that show a thing, if so many
fit, and some background."""

EASY_SHARE = 0.3
"""Share of the steps of the read stage, the first ones, with easy questions: what is there, and where."""

READ_KEPT = 48
PHOTOGRAPHS_EVERY = 4
"""Every fourth batch of smol's read and tune stages is imaginary photographs, which the model for photographs sees."""

CLIP_KEPT = (96, 144, 144, 288)
"""Numbers of visual tokens of a clip that stay in a batch of the clips stage, one of them at random."""

SCENES_EVERY = 4
"""Every fourth batch of the clips stage is scenes."""

CLIP_FIRST_SCENE, CLIP_VALIDATION = 3_000_000, 96
"""The first training scene of the clips stage, and the number of validation clips."""

PROJECT_STEPS, PROJECT_BATCH, PROJECT_SCENES, PROJECT_KEPT = 8_000, 2_048, 1_600, 200
"""Steps and patches per step of the project stage; its scenes, which are encoded once, and the patches of each."""

ANSWER_VALIDATION_SCENES = 4

CHECKPOINT_EVERY, MEASURE_EVERY = 50, 400
VISION_VALIDATION, ANSWER_VALIDATION = 128, 48
"""Validation scenes on which the tower is measured, and about which questions are asked."""

VALIDATION_BATCH = 16
ANSWER_FIRST_SCENE = 1_000_000
"""The first training scene of the stages after the vision stage."""


@dataclass(frozen=True)
class AnswerSettings:
    """What the read and tune stages of a model need.

    Attributes:
        read_steps: Steps of the read stage.
        tune_steps: Steps of the tune stage.
        clip_steps: Steps of the clips stage.
        scenes: Scenes or clips per batch and worker.
        questions: Questions about each scene.
        wrapped: The share of them that are wrapped in an instruction. Those are long, and cost as much as two.
        accumulate: Batches per step.
        read_lr: Learning rate of the read stage.
        tune_lr: Learning rate of the tune stage.
        tune_kept: Numbers of visual tokens that stay in a batch of the tune stage, one of them at random, to prepare
            the model for pruning.
    """

    read_steps: int
    tune_steps: int
    clip_steps: int
    scenes: int
    questions: int
    wrapped: float
    accumulate: int
    read_lr: float
    tune_lr: float
    tune_kept: tuple[int, ...]


SETTINGS = {
    SMOL: AnswerSettings(
        read_steps=750,
        tune_steps=500,
        clip_steps=250,
        scenes=4,
        questions=8,
        wrapped=0.15,
        accumulate=2,
        read_lr=5e-4,
        tune_lr=2e-4,
        tune_kept=(32, 64, 64, 96, 160, 288),
    ),
    THINGS: AnswerSettings(
        read_steps=4_200,
        tune_steps=1_500,
        clip_steps=1_200,
        scenes=8,
        questions=6,
        wrapped=0.2,
        accumulate=1,
        read_lr=2e-3,
        tune_lr=2e-4,
        tune_kept=(48, 64, 64, 64, 96, 96, 160, 288, GRID * GRID),
    ),
}


def run_stages(
    model: str,
    stages: tuple[str, ...],
    out: Path,
    steps: int | None = None,
    warm_start: bool = False,
    half: bool = False,
) -> None:
    """Train the given stages of a model in their order, as one of the workers.

    Stages before them are loaded from their checkpoints in `out`, or else from the results that the repository holds.

    Args:
        model: The model, one of `MODELS`.
        stages: The stages.
        out: Folder for checkpoints and curves.
        steps: Steps of each stage, if not those of the recipe. The learning rate falls over the last third of them.
        warm_start: Start a stage that has no checkpoint from the result that the repository holds, not from nothing.
        half: Compute with the tower and the language models in bfloat16.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), disable=distributed.rank() > 0) as progress:
        recipe = Recipe(model, out, progress, steps, warm_start, half)
        for stage in STAGES[: 1 + max(map(STAGES.index, stages))]:
            getattr(recipe, stage)(train=stage in stages)


class Recipe:
    """The modules and the stages of the training of a model. Each stage is a method of the same name."""

    def __init__(
        self,
        model: str,
        out: Path,
        progress: Progress,
        steps: int | None = None,
        warm_start: bool = False,
        half: bool = False,
    ) -> None:
        self.model, self.settings = model, SETTINGS[model]
        self.out, self.progress, self.steps, self.warm_start, self.half = out, progress, steps, warm_start, half
        out.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        self.tower = build_tower()
        if half:
            attend_in_single_precision(self.tower)
        self.heads = tower.PatchHeads()
        self.text = build_clip_text(len(self.tokenizer))
        self.temperatures = clip.Temperatures()

    @cached_property
    def reader(self) -> Reader:
        """The language model and what is trained around it, with the same initial weights in every worker."""
        torch.manual_seed(1)
        if self.model == THINGS:
            own = build_language_model(len(self.tokenizer))
            if self.half:
                attend_in_single_precision(own)
            return Reader(own, self.tokenizer, VICUNA)
        language_model, tokenizer = smol.load_language_model()
        if self.half:
            language_model.bfloat16()
            attend_in_single_precision(language_model)
        return Reader(language_model, tokenizer, CHAT_ML)

    @cached_property
    def answering(self) -> dict[str, nn.Module]:
        """What of the language model is trained: a LoRA of SmolLM2, or the whole small Llama; and the pointing head."""
        reader = self.reader
        if self.model == THINGS:
            return {"language": reader.model, "pointing": reader.pointing}
        torch.manual_seed(2)
        lora = Lora(reader.model)
        lora.attach(reader.model)
        return {"lora": lora, "pointing": reader.pointing}

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
        """Train the tower on what every patch shows, and tower and text encoder on captions."""
        steps = self.steps or VISION_STEPS
        modules = {"tower": self.tower, "heads": self.heads, "clip": self.text, "temperatures": self.temperatures}
        lr = WARM_VISION_LR if self.warm_start else VISION_LR
        stage = Stage("vision", self.out, modules, steps, lr, half=self.half)

        def step(number: int) -> dict[str, Tensor]:
            turn = number * distributed.size() + distributed.rank()
            is_late = number >= (1 - LAST_STEPS) * steps
            crowded = number % TURN < (LAST_CROWD_STEPS if is_late else CROWD_STEPS)
            count = (CROWDS if crowded else SCENES) // distributed.size()
            batch = draw_crowds(turn * count, count) if crowded else draw_scenes("train", turn * count, count, True)
            captions = write_captions(batch.views, np.random.default_rng((3, turn)))
            pixels = torch.lerp(batch.pixels, augment(batch.pixels), LAST_CHANGES if is_late else 1.0)
            batch, keep = drop_background(batch, CROWD_KEPT if crowded else SCENE_KEPT)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
                normed = self.tower.post_layernorm(tower.encode(self.tower, pixels, batch.positions, keep)).float()
            losses = tower.patch_losses(self.heads, normed[:, 1:], batch)
            # A finished result knows what captions need.
            if number % CAPTIONS_EVERY or (number < CAPTIONS_FROM * steps and not self.warm_start):
                return losses
            ids = encode_captions(self.tokenizer, captions)
            return losses | clip.caption_losses(self.text, self.temperatures, normed, ids)

        self._train(stage, step, self._measure_vision, train)

    def read(self, train: bool) -> None:
        """Train the language model to answer questions from visual words, the output of an ideal projector."""
        settings = self.settings
        steps = self.steps or settings.read_steps
        modules = {**self.answering, "words": self.reader.words}
        stage = Stage(f"{self.model}-read", self.out, modules, steps, settings.read_lr, settings.accumulate)

        def step(number: int) -> dict[str, Tensor]:
            if self._is_turn_of_photographs(number):
                return self._read_photographs(number)
            # A finished result knows the easy kinds.
            is_easy = number < EASY_SHARE * steps * settings.accumulate and not self.warm_start
            kinds = EASY if is_easy else KINDS
            batch = self._draw_scenes(number, settings.scenes)
            keep = choose_patches(batch.owners, READ_KEPT, guided=True)
            words = self.reader.noisy_words(batch, keep)
            with self._mixed_precision():
                return self.reader.losses(words, keep, self._draw_questions(batch, kinds, number), batch.views)

        self._train(stage, step, lambda: self._measure_answers(self.reader.noisy_words), train)

    def project(self, train: bool) -> None:
        """Train the projector alone, to turn the tower's output into visual words."""
        reader = self.reader
        modules: dict[str, nn.Module] = {"projector": reader.projector}
        stage = Stage(f"{self.model}-project", self.out, modules, self.steps or PROJECT_STEPS, lr=3e-3)
        if not train:
            return self._train(stage, lambda number: {}, None, train)
        features, names, outlines = self._encode_patches()
        reader.projector.whiten(features)

        def step(number: int) -> dict[str, Tensor]:
            rng = torch.Generator().manual_seed(number * distributed.size() + distributed.rank())
            rows = torch.randint(len(features), (PROJECT_BATCH // distributed.size(),), generator=rng)
            return reader.projection_losses(features[rows], names[rows], outlines[rows])

        self._train(stage, step, None, train)

    def _encode_patches(self) -> tuple[Tensor, Tensor, Tensor]:
        """Encode patches of many scenes: their features, the names of what they show, and where and how large it is."""
        parts = []
        for first in range(0, PROJECT_SCENES, VALIDATION_BATCH):
            batch = draw_scenes("train", ANSWER_FIRST_SCENE + first, VALIDATION_BATCH)
            batch, seen = drop_background(batch, PROJECT_KEPT)
            parts.append([each.flatten(0, 1) for each in (self._features(batch, seen), *describe(batch))])
        features, names, outlines = (torch.cat(each) for each in zip(*parts, strict=True))
        return features, names, outlines

    def tune(self, train: bool) -> None:
        """Train projector and language model together on what the tower sees, with most visual tokens dropped."""
        settings = self.settings
        modules = {**self.answering, "projector": self.reader.projector}
        steps = self.steps or settings.tune_steps
        stage = Stage(f"{self.model}-tune", self.out, modules, steps, settings.tune_lr, settings.accumulate)

        def step(number: int) -> dict[str, Tensor]:
            if self._is_turn_of_photographs(number):
                return self._read_photographs(number)
            return self._tune_on_scenes(number)

        self._train(stage, step, lambda: self._measure_answers(self._see), train)

    def _tune_on_scenes(self, number: int) -> dict[str, Tensor]:
        settings = self.settings
        kept = int(np.random.default_rng((4, number)).choice(settings.tune_kept))
        batch = self._draw_scenes(number, settings.scenes)
        questions = self._draw_questions(batch, KINDS, number)
        # The tower was trained with most of the background dropped. Without it, it takes a third of the time.
        batch, seen = drop_background(batch, max(kept, SCENE_KEPT))
        keep = choose_patches(batch.owners, kept, guided=True)
        with self._mixed_precision():
            visual = self.reader.projector(gather_tokens(self._features(batch, seen), keep))
            return self.reader.losses(visual, batch.positions.gather(1, keep), questions, batch.views)

    def _see(self, batch: Patches, keep: Tensor) -> Tensor:
        return self.reader.projector(gather_tokens(self._features(batch), keep))

    def _see_clips(self, batch: clips.Clips, keep: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            features = clips.encode_clips(self.tower, batch, keep).float()
        return self.reader.projector(features)

    def clips(self, train: bool) -> None:
        """Train projector and language model on clips, and on scenes, so that those are not forgotten."""
        settings = self.settings
        modules = {**self.answering, "projector": self.reader.projector}
        steps = self.steps or settings.clip_steps
        stage = Stage(f"{self.model}-clips", self.out, modules, steps, settings.tune_lr, settings.accumulate)

        def step(number: int) -> dict[str, Tensor]:
            if number % SCENES_EVERY == SCENES_EVERY - 1:
                return self._tune_on_scenes(number)
            kept = int(np.random.default_rng((6, number)).choice(CLIP_KEPT))
            count = settings.scenes
            turn = number * distributed.size() + distributed.rank()
            batch = clips.draw_clips("train", CLIP_FIRST_SCENE + turn * count, count)
            keep = clips.choose_tokens(batch, kept)
            with self._mixed_precision():
                return self.reader.clip_losses(self._see_clips(batch, keep), keep, batch)

        self._train(stage, step, self._measure_clips, train)

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

    @cached_property
    def photographer(self) -> Photographer:
        """Draws photographs as the tower for photographs sees them."""
        return Photographer(load_tower().classifier.weight.detach())

    def _is_turn_of_photographs(self, number: int) -> bool:
        return self.model == SMOL and number % PHOTOGRAPHS_EVERY == PHOTOGRAPHS_EVERY - 1

    def _read_photographs(self, number: int) -> dict[str, Tensor]:
        rng = np.random.default_rng((8, number))
        return self.reader.photograph_losses(self._draw_photographs(rng, self.settings.scenes))

    def _draw_photographs(self, rng: np.random.Generator, count: int) -> Photographs:
        return self.photographer.draw(rng, count, READ_KEPT, self.settings.questions)

    def _mixed_precision(self) -> torch.autocast:
        """Compute in bfloat16 if that was asked for. SmolLM2 is frozen, so it is kept in bfloat16 as a whole."""
        return torch.autocast("cpu", torch.bfloat16, enabled=self.half and self.model == THINGS)

    def _draw_scenes(self, number: int, scenes: int) -> Patches:
        turn = number * distributed.size() + distributed.rank()
        return draw_scenes("train", ANSWER_FIRST_SCENE + turn * scenes, scenes)

    def _draw_questions(self, batch: Patches, kinds: tuple[str, ...], seed: int) -> list[list[Question]]:
        rng, settings = np.random.default_rng((5, seed)), self.settings
        return [draw_questions(view, rng, kinds, settings.questions, settings.wrapped) for view in batch.views]

    @torch.no_grad()
    def _features(self, batch: Patches, seen: Tensor | None = None) -> Tensor:
        """Encode scenes: all patches, or those of the indices `seen`, B×n, which are left in the batch."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            return tower.encode(self.tower, batch.pixels, batch.positions, seen)[:, 1:].float()

    @torch.no_grad()
    def _measure_answers(self, see: Callable[[Patches, Tensor], Tensor]) -> dict[str, float]:
        torch.manual_seed(0)
        tally = tower.Tally()
        for first in range(0, ANSWER_VALIDATION, ANSWER_VALIDATION_SCENES):
            batch = draw_scenes("validation", first, ANSWER_VALIDATION_SCENES)
            keep = choose_patches(batch.owners, READ_KEPT, guided=True)
            self.reader.tally_answers(tally, see(batch, keep), keep, batch, first)
            if self.model == SMOL:
                drawn = self._draw_photographs(np.random.default_rng((9, first)), ANSWER_VALIDATION_SCENES)
                self.reader.tally_photographs(tally, drawn)
        return tally.percentages()

    @torch.no_grad()
    def _measure_clips(self) -> dict[str, float]:
        """Measure answers about clips, and those about scenes as `scenes`."""
        scenes = self._measure_answers(self._see)["all"]
        tally = tower.Tally()
        for first in range(0, CLIP_VALIDATION, VALIDATION_BATCH):
            batch = clips.draw_clips("validation", first, VALIDATION_BATCH)
            keep = clips.choose_tokens(batch, min(CLIP_KEPT))
            self.reader.tally_clips(tally, self._see_clips(batch, keep), keep, batch)
        return tally.percentages() | {"scenes": scenes}

    @torch.no_grad()
    def _measure_vision(self) -> dict[str, float]:
        tally = tower.Tally()
        for first in range(0, VISION_VALIDATION, VALIDATION_BATCH):
            batch = draw_scenes("validation", first, VALIDATION_BATCH)
            normed = self.tower.post_layernorm(tower.encode(self.tower, batch.pixels, batch.positions))
            tower.tally_patches(tally, self.heads, normed, batch)
            clip.tally_captions(tally, self.text, self.tokenizer, normed, batch, first)
        return tally.percentages()
