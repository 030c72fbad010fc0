"""What the pocket benchmark asks: test scenes with their questions, and how an answer is scored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
from PIL.Image import Image

from eadp.pocket.text import prompt
from eadp.pocket.world import KINDS, Split, ask, draw, scene

Box = tuple[float, float, float, float]
TURNS = 2
"""Questions asked about each scene."""


@dataclass(frozen=True)
class Sample:
    """One question. boxes: top, left, bottom, right of what it is about, as shares of the image; none: it is absent."""

    image: Image
    question: str
    answer: str
    kind: str
    boxes: tuple[Box, ...]
    scene: int

    @property
    def prompt(self) -> str:
        """What the processor takes together with the image."""
        return prompt(self.question)

    def right(self, answer: str) -> bool:
        """Exact match, but for spaces, capitals and a full stop at the end."""
        return _plain(answer) == _plain(self.answer)


def samples(split: Split, total: int, kinds: tuple[str, ...] = KINDS) -> Iterator[Sample]:
    """`total` questions of a split, always the same ones, every kind in its turn, TURNS a scene."""
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ValueError(f"unknown kinds of question {unknown}; there are {', '.join(KINDS)}")
    made = 0
    for index in count():
        drawn, image = scene(split, index), None
        for _ in range(TURNS):
            if made == total:
                return
            kind = kinds[made % len(kinds)]
            question = ask(drawn, np.random.default_rng((*drawn.seed, 2, made)), kind)
            if question is None:
                continue
            image = image or draw(drawn)
            yield Sample(image, question.text, question.answer, kind, question.boxes(drawn), index)
            made += 1


def _plain(answer: str) -> str:
    return " ".join(answer.lower().rstrip(". ").split())
