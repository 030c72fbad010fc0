"""Imaginary photographs: visual words as the tower for photographs gives them, with questions, for the read stage.

No photograph is needed. The classifier of the tower says which classes look alike: cells that show a class have logits
around those of the class's own row, so what they are mistaken for is what the tower mistakes them for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from eadp.models.guides.class_words import class_words
from eadp.pocket.things.questions import Question
from eadp.pocket.things.render import GRID
from eadp.pocket.things.wording import with_article

NAMING = (
    "What is in this photo?",
    "What does this photo show?",
    "What is this?",
    "What do you see in the picture?",
    "Name the main thing in this photograph.",
    "Please tell me what is shown here.",
    "Look at the photo carefully and say what it shows.",
)
NAMING_IN_FAMILY = (
    "What kind of {family} is this?",
    "Which {family} does the photo show?",
    "Please tell me which {family} you can see in this picture.",
)
EXISTENCE = (
    "Is there {thing} in the photo?",
    "Is this {thing}?",
    "Do you see {thing} in this picture?",
    "Can you find {thing} here?",
    "Look at the image. Does it show {thing}? Please answer yes or no.",
)
KINDS = ("naming", "existence")
"""The kinds of questions about photographs."""

TWO_THINGS = 0.3
"""Share of the photographs with a second, smaller thing."""

SURE, UNSURE = (5.0, 12.0), (0.0, 6.0)
"""How clear the cells of things and of the background are: the factors of their logits. With 5, a class has a
probability of some hundredths; with 12, nearly 1."""

NOISE = 1.3
"""Standard deviation of the logits' noise."""

VIEWS, VIEWS_SURE, SECOND = 0.8, (2.0, 9.0), 0.4
"""The tower also looks at smaller views of the whole photograph. Their share of the logits of each cell, how clear they
are, and how clear a second thing is in them beside the main one."""

NEAR = 20
"""Absent things that look like a present one are drawn from this many classes."""

FAMILY, WIDEST = 5, 410
"""A word for at least this many classes names a family. Words for more than `WIDEST`, such as "object", are not asked
about: nearly every photograph shows one."""


@dataclass(frozen=True)
class Photographs:
    """A batch of B imaginary photographs with n cells each.

    Attributes:
        classes: B×n×1000, the probabilities of the classes.
        keep: B×n, the cells that stay of GRID².
        questions: The questions about each photograph.
    """

    classes: Tensor
    keep: Tensor
    questions: list[list[Question]]


class Photographer:
    """Draws imaginary photographs.

    Args:
        rows: 1000×d, the rows of the tower's classifier.
    """

    def __init__(self, rows: Tensor) -> None:
        centred = rows - rows.mean(0)
        unit = centred / centred.norm(dim=1, keepdim=True)
        self.alike = unit @ unit.mT

    @cached_property
    def words(self) -> list[list[tuple[str, frozenset[int]]]]:
        """Per class, the words for it that rarely mean something else, each with all its classes."""
        known = class_words()
        found: list[list[tuple[str, frozenset[int]]]] = [[] for _ in known.names]
        for word, classes in known.items():
            meant = frozenset(number for number, share in classes.items() if share > 0.5)
            for number in meant if len(meant) <= WIDEST else ():
                found[number].append((word, meant))
        return found

    def draw(self, rng: np.random.Generator, count: int, kept: int, questions: int) -> Photographs:
        """Draw photographs, the cells of each that stay, and questions about each."""
        drawn = [self._draw_one(rng, kept, questions) for _ in range(count)]
        classes, keep, asked = zip(*drawn, strict=True)
        return Photographs(torch.stack(classes), torch.stack(keep), list(asked))

    def _draw_one(self, rng: np.random.Generator, kept: int, questions: int) -> tuple[Tensor, Tensor, list[Question]]:
        total = len(self.alike)
        things = rng.choice(total, 2 if rng.random() < TWO_THINGS else 1, replace=False)
        background = rng.choice(total, 6, replace=False)
        cells = np.full(GRID * GRID, -1)
        # The main thing is drawn last, over the other, and is larger.
        for index in reversed(range(len(things))):
            cells[_ellipse(rng, (0.1, 0.5) if index == 0 else (0.03, 0.08))] = index
        shown = rng.permutation(np.flatnonzero(cells >= 0))[: kept - kept // 6]
        rest = rng.permutation(np.flatnonzero(cells < 0))[: kept - len(shown)]
        keep = np.sort(np.concatenate((shown, rest)))
        mine = cells[keep]
        names = np.where(mine >= 0, things[np.maximum(mine, 0)], rng.choice(background, kept))
        clear = np.where(mine >= 0, rng.uniform(*SURE, kept), rng.uniform(*UNSURE, kept))
        logits = torch.from_numpy(clear).float()[:, None] * self.alike[torch.from_numpy(names)]
        logits += NOISE * torch.from_numpy(rng.standard_normal(logits.shape, np.float32))
        logits = torch.lerp(logits, self._draw_views(rng, things), VIEWS)
        asked = [self._ask(rng, things) for _ in range(questions)]
        return logits.softmax(-1), torch.from_numpy(keep), asked

    def _draw_views(self, rng: np.random.Generator, things: np.ndarray) -> Tensor:
        """Draw the logits of the smaller views, 1000, which all cells share."""
        weights = torch.tensor([1.0, SECOND])[: len(things)]
        alike = weights @ self.alike[torch.from_numpy(things)]
        noise = torch.from_numpy(rng.standard_normal(alike.shape, np.float32))
        return rng.uniform(*VIEWS_SURE) * alike + NOISE * noise

    def _ask(self, rng: np.random.Generator, things: np.ndarray) -> Question:
        main = int(things[0])
        if rng.random() < 0.4:
            families = [word for word, classes in self.words[main] if len(classes) >= FAMILY]
            if families and rng.random() < 0.4:
                text = _choose(rng, NAMING_IN_FAMILY).format(family=_choose(rng, families))
            else:
                text = _choose(rng, NAMING)
            return Question("naming", text, class_words().names[main], (0,))
        present = rng.random() < 0.5
        word = self._present(rng, things) if present else self._absent(rng, things)
        text = _choose(rng, EXISTENCE).format(thing=with_article(word))
        return Question("existence", text, "yes" if present else "no", (0,) if present else ())

    def _present(self, rng: np.random.Generator, things: np.ndarray) -> str:
        return _choose(rng, [word for word, _ in self.words[int(rng.choice(things))]])

    def _absent(self, rng: np.random.Generator, things: np.ndarray) -> str:
        """A word for something that looks like a present thing, or for any other class, but for no present thing."""
        while True:
            near = self.alike[int(things[0])].topk(NEAR).indices
            other = int(near[int(rng.integers(NEAR))]) if rng.random() < 0.6 else int(rng.integers(len(self.alike)))
            words = [word for word, classes in self.words[other] if classes.isdisjoint(things.tolist())]
            if words:
                return _choose(rng, words)


def _ellipse(rng: np.random.Generator, area: tuple[float, float]) -> np.ndarray:
    """Draw the cells of an ellipse that covers a share of the image in this range."""
    share, stretch = rng.uniform(*area), rng.uniform(0.6, 1.6)
    radius = np.sqrt(share / np.pi)
    across, down = rng.uniform(0.25, 0.75, 2)
    x, y = ((np.arange(GRID * GRID) % GRID + 0.5) / GRID, (np.arange(GRID * GRID) // GRID + 0.5) / GRID)
    return np.flatnonzero(((x - across) / (radius * stretch)) ** 2 + ((y - down) / (radius / stretch)) ** 2 < 1)


def _choose(rng: np.random.Generator, texts: tuple[str, ...] | list[str]) -> str:
    return texts[int(rng.integers(len(texts)))]
