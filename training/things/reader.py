"""Stages after the vision stage: a language model learns to answer questions from visual tokens."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, tensor
from transformers import LlamaForCausalLM, LlavaConfig
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from eadp.pocket.things.model import tower_config
from eadp.pocket.things.questions import KINDS, WRAPPED, Question, make_question
from eadp.pocket.things.render import GRID
from eadp.pocket.things.view import View
from training.language import gather_tokens
from training.things.clips import Clips
from training.things.packing import ChatFormat, Packer, Text, answer_logits, answer_losses, right_answers
from training.things.photographs import Photographs
from training.things.places import outlines_of
from training.things.pointing import PointingHead
from training.things.tower import Tally
from training.things.visual_words import BACKGROUND, VisualWords, all_names, named
from training.things.whitening import WhitenedProjector
from training.things.windows import Patches

EASY = ("existence", "small", "place", "group", "reading")
"""The kinds of questions that come first: what is there, and what is at a place."""

TRIES = 10
"""Questions that are tried for each one that a scene gets, before it stays with fewer."""

MEASURED_PER_SCENE = 4
"""Questions about each scene in a measurement."""

POINTING_WEIGHT = 0.5

SURE_OF_A_NAME = 20.0
"""Where names are told apart, the logit of a visual word's own name is ahead of the others by about this much."""


class Reader:
    """A language model with what it needs to learn to answer questions about scenes.

    Args:
        model: The language model. Its parameters that require gradients are trained.
        tokenizer: Its tokenizer.
        chat: Its chat format.
    """

    def __init__(self, model: LlamaForCausalLM, tokenizer: Any, chat: ChatFormat) -> None:
        self.model = model
        self.words = VisualWords(model.model.embed_tokens, tokenizer)
        self.packer = Packer(tokenizer, chat)
        self.pointing = PointingHead(model.config.hidden_size)
        layers = model.config.num_hidden_layers
        self.pointing_layers = (layers // 2, 3 * layers // 4)
        # A copy: LLaVA's configuration changes the one of its language model.
        vision_config = tower_config()
        config = LlavaConfig(vision_config=vision_config, text_config=deepcopy(model.config))
        self.projector = WhitenedProjector(LlavaMultiModalProjector(config), vision_config.hidden_size)

    def noisy_words(self, batch: Patches, keep: Tensor) -> Tensor:
        """Return the visual words of the kept patches of whole scenes, with noise, B×n×d."""
        return self.words.add_noise(gather_tokens(self.words.targets(*describe(batch)), keep))

    def photograph_losses(self, photographs: Photographs) -> dict[str, Tensor]:
        """Compute the losses of the questions about imaginary photographs."""
        visual = self.words.add_noise(self.words.of_classes(photographs.classes, photographs.keep))
        questions = photographs.questions
        return self.losses(visual, photographs.keep, questions, [None] * len(questions))

    def losses(
        self, visual: Tensor, keep: Tensor, questions: list[list[Question]], views: Sequence[View | None]
    ) -> dict[str, Tensor]:
        """Compute the losses of questions: their answers, where the named things are, and where the answers are.

        Args:
            visual: B×n×d, the kept visual tokens.
            keep: B×n, their indices in the images.
            questions: The questions about each image.
            views: The views of the images; None where there is none.
        """
        return self._losses(visual, keep, self.packer.pack(questions, views), GRID * GRID)

    def clip_losses(self, visual: Tensor, keep: Tensor, clips: Clips) -> dict[str, Tensor]:
        """Compute the losses of the questions about clips, as `losses` does."""
        return self._losses(visual, keep, self._pack_clips(clips), clips.shown[0].numel())

    def _pack_clips(self, clips: Clips) -> Text:
        text = self.packer.pack([[question] for question in clips.questions], [None] * len(clips.questions))
        return replace(text, answered=tensor(clips.places))

    def _losses(self, visual: Tensor, keep: Tensor, text: Text, total: int) -> dict[str, Tensor]:
        last, middle, late = self.packer.hidden_states(self.model, visual, keep, text, self.pointing_layers, total)
        losses = answer_losses(answer_logits(self.model, last, text), text)
        losses["named"] = POINTING_WEIGHT * self.pointing.mention_loss(middle, text)
        losses["found"] = POINTING_WEIGHT * self.pointing.answer_loss(late, text)
        return losses

    def projection_losses(self, features: Tensor, names: Tensor, outlines: Tensor) -> dict[str, Tensor]:
        """Compute the losses of the projector: its error, and how well its output tells names apart.

        The error is a share of the variance of the visual words, and things and background have the same weight in
        both. The error alone is no guide: an output that names nothing can have a small one.

        Args:
            features: n×d, hidden states of the tower.
            names: n, the numbers of the names of what the patches show.
            outlines: n×3, where that is, and how large.
        """
        target = self.words.targets(names, outlines).detach()
        projected = self.projector(features)
        known = self.words.names().detach()
        known = known - known.mean(0)
        scale = SURE_OF_A_NAME / known.square().sum(1).mean()
        losses = {
            "error": F.mse_loss(projected, target, reduction="none").mean(-1) / target.var(),
            "named": F.cross_entropy(scale * (projected @ known.mT), names, reduction="none"),
        }
        shown = names != all_names()[BACKGROUND]
        return {name: (loss[shown].mean() + loss[~shown].mean()) / 2 for name, loss in losses.items()}

    def tally_answers(self, tally: Tally, visual: Tensor, keep: Tensor, batch: Patches, seed: int) -> None:
        """Count right answers about scenes, by kind and over all kinds (`all`)."""
        rng = np.random.default_rng((7, seed))
        questions = [draw_questions(view, rng, KINDS, MEASURED_PER_SCENE) for view in batch.views]
        self._tally(tally, visual, keep, questions, batch.views)

    def tally_photographs(self, tally: Tally, photographs: Photographs) -> None:
        """Count right answers about imaginary photographs, as `photo_` and the kind."""
        visual = self.words.of_classes(photographs.classes, photographs.keep)
        asked = photographs.questions
        questions = [[replace(question, kind=f"photo_{question.kind}") for question in each] for each in asked]
        self._tally(tally, visual, photographs.keep, questions, [None] * len(asked))

    def tally_clips(self, tally: Tally, visual: Tensor, keep: Tensor, clips: Clips) -> None:
        """Count right answers about clips, by event and over all events (`all`)."""
        text = self._pack_clips(clips)
        (last,) = self.packer.hidden_states(self.model, visual, keep, text, total=clips.shown[0].numel())
        right = right_answers(answer_logits(self.model, last, text), text)
        for question, (known,) in zip(clips.questions, right, strict=True):
            tally.count(question.kind, tensor(known))
            tally.count("all", tensor(known))

    def _tally(
        self,
        tally: Tally,
        visual: Tensor,
        keep: Tensor,
        questions: list[list[Question]],
        views: Sequence[View | None],
    ) -> None:
        text = self.packer.pack(questions, views)
        (last,) = self.packer.hidden_states(self.model, visual, keep, text)
        right = right_answers(answer_logits(self.model, last, text), text)
        for asked, correct in zip(questions, right, strict=True):
            for question, known in zip(asked, correct, strict=True):
                tally.count(question.kind, tensor(known))
                if question.kind in KINDS:
                    tally.count("all", tensor(known))


def describe(batch: Patches) -> tuple[Tensor, Tensor]:
    """Return what an ideal projector says of patches: the numbers of the names, B×n, and the outlines, B×n×3."""
    names = named([view.scene for view in batch.views], batch.owners)
    return names, outlines_of(batch.positions, batch.offsets, batch.sizes)


def draw_questions(
    view: View, rng: np.random.Generator, kinds: tuple[str, ...], count: int, wrapped: float = WRAPPED
) -> list[Question]:
    """Draw different questions about a scene, of random kinds."""
    questions: dict[str, Question] = {}
    for _ in range(TRIES * count):
        question = make_question(view, rng, kinds[int(rng.integers(len(kinds)))], wrapped)
        if question is not None:
            questions[question.text] = question
        if len(questions) == count:
            break
    return list(questions.values())
