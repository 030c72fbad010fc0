"""Methods with obvious selections, for tests of how selections are applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens
from eadp.methods import BeforeMethod, Method


@dataclass(frozen=True)
class InPlace(BeforeMethod):
    """Kept tokens keep their positions."""

    positions = "keep"
    newlines = "kept rows"


@dataclass(frozen=True)
class EverySecond(InPlace):
    name = "test_every_second"
    citation = "none"
    step: int = 2

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        return Selection(torch.arange(0, len(tokens), self.step), len(tokens), self.name)


@dataclass(frozen=True)
class Ragged(InPlace):
    """Keeps a different number of tokens for each image."""

    name = "test_ragged"
    citation = "none"

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        score = tokens.features[:, 0].float()
        count = 1 + int(score.argmax()) % (len(tokens) // 2)
        return Selection(score.topk(count).indices.sort().values, len(tokens), self.name)


@dataclass(frozen=True)
class Pairs(InPlace):
    """Keeps every second token, merged with the next one by their mean."""

    name = "test_pairs"
    citation = "none"
    merges = True

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        kept = torch.arange(0, len(tokens), 2)
        merge = torch.zeros(len(kept), len(tokens))
        for row, index in enumerate(kept.tolist()):
            merge[row, index : index + 2] = 1 / len(tokens.features[index : index + 2])
        return Selection(kept, len(tokens), self.name, merge=merge)


@dataclass(frozen=True)
class Nearest(InPlace):
    """Keeps exactly `keep` tokens: those most similar to the question."""

    name = "test_nearest"
    citation = "none"
    needs = frozenset({"text"})

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        assert text is not None
        assert tokens.aligned is not None
        assert isinstance(text.pooled, Tensor)
        score = tokens.aligned.float() @ text.pooled
        kept = score.topk(self.count_to_keep(len(tokens))).indices.sort().values
        return Selection(kept, len(tokens), self.name, scores=score)


class Guide:
    """A text guide with deterministic random vectors for the characters of the question, and a random projection."""

    sign = 1.0
    questions: ClassVar[list[str]] = []

    def __init__(self, space: str, width: int = 8) -> None:
        self.space, self.width = space, width
        self.questions = []

    def encode(self, question: str, layout: str = "words") -> TextGuide:
        self.questions.append(question)
        generator = torch.Generator().manual_seed(sum(map(ord, question)))
        tokens = torch.randn(len(question), self.width, generator=generator)
        return TextGuide(tokens, tokens.mean(0), list(question), self.sign)

    def align(self, states: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return states.float() @ torch.randn(states.shape[-1], self.width, generator=generator)


def guide_of(family: str, method: type[Method]) -> Guide | None:
    """Return a guide in the space in which a method reads the question of a family's prompts; None if it does not."""
    if "word_embeddings" in method.needs:
        return Guide("language")
    if "text" not in method.needs:
        return None
    return Guide("tower" if family.startswith("llava") else "language")
