"""The paper's claims, each as an experiment on the tokens of scenes whose things are known.

No language model answers here: what is measured is where the words point, and which tokens stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens
from eadp.core.boxes import cells_in_boxes
from eadp.evaluate.auc import rank_auc
from eadp.methods import EADP, BeforeMethod
from eadp.methods.base import Need
from eadp.models.prompt import build_inputs
from eadp.pocket.samples import Sample
from eadp.pocket.things.mentions import find_mentions
from eadp.runtime import attach
from eadp.utils.statistics import paired_difference

Measure = Literal["pointing", "tokens", "things"]
Verdict = Literal["holds", "does not hold", "cannot be told"]

MEASURES: dict[Measure, str] = {
    "pointing": "chance that a token of a named thing has a higher weight than another token",
    "tokens": "share of the tokens of the things in question that stay",
    "things": "share of the things in question of which a token stays",
}

NAMING_KINDS = ("existence", "small", "count", "side", "relation", "reading", "several")
"""Kinds of questions that name all things in question, if they name any. Others also ask for a thing by its place."""

NO_DIFFERENCE = 0.01
"""A difference whose whole interval is smaller than this is none."""


@dataclass(frozen=True)
class Claim:
    """Something that the paper says, as a comparison of two settings of EADP.

    Attributes:
        text: The claim.
        better: The settings that the paper says are better.
        worse: Those that it says are worse.
        measure: What decides.
        keep: The budgets at which it is measured. For "pointing", which has none, a single one.
    """

    text: str
    better: dict[str, Any]
    worse: dict[str, Any]
    measure: Measure
    keep: tuple[int, ...] = (64, 32, 16)


NAIVE: dict[str, Any] = {"mu": 0.0, "q": 1.0, "gamma": 1e6}
"""Dense guidance without the filter: all words, with equal weights."""

GLOBAL: dict[str, Any] = {"mu": 1.0}
FILTERED: dict[str, Any] = {"mu": 0.0}

CLAIMS = (
    Claim("Naive dense guidance is worse than global guidance", GLOBAL, NAIVE, "pointing", (64,)),
    Claim("Filtered dense guidance is better than naive dense guidance", FILTERED, NAIVE, "pointing", (64,)),
    Claim("Filtered dense guidance is better than global guidance", FILTERED, GLOBAL, "pointing", (64,)),
    Claim("Both together are better than filtered dense guidance alone (μ)", {}, FILTERED, "pointing", (64,)),
    Claim("Both together are better than global guidance alone (μ)", {}, GLOBAL, "pointing", (64,)),
    Claim("Keeping half of the words is better than keeping all (q)", {}, {"q": 1.0}, "pointing", (64,)),
    Claim("A low temperature of words is better than a high one (τ)", {}, {"tau": 1.0}, "pointing", (64,)),
    Claim("Weights by entropy are better than equal ones (γ)", {}, {"gamma": 1e6}, "pointing", (64,)),
    Claim("Smoothing the map is better than leaving it", {}, {"smoothing": 1}, "pointing", (64,)),
    Claim("Smoothing keeps more of the things in question", {}, {"smoothing": 1}, "things"),
    Claim("Sharpening the map keeps more of the things in question (β)", {}, {"beta": 1.0}, "tokens"),
    Claim("Facility location covers more things than top-K", {}, {"selection": "topk"}, "things"),
    Claim("Facility location covers more things than a DPP", {}, {"selection": "dpp"}, "things"),
    Claim("Guidance by the question covers more things than none (β = 0)", {}, {"beta": 0.0}, "things"),
)


@dataclass(frozen=True)
class Asked:
    """A question with the tokens of its image.

    Attributes:
        scene: The number of the scene.
        dense: Whether the question is long.
        tokens: The visual tokens.
        text: The encoded question.
        things: T×N, the tokens of each thing in question.
        names_all: Whether the question names all of these things.
        mentioned: M, whether each word is part of the name of a thing.
    """

    scene: int
    dense: bool
    tokens: VisualTokens
    text: TextGuide
    things: Tensor
    names_all: bool
    mentioned: Tensor


@dataclass(frozen=True)
class _Recorder(BeforeMethod):
    """Keeps one token, and remembers what the method was given."""

    name: ClassVar[str] = "recorder"
    needs: ClassVar[frozenset[Need]] = frozenset({"text"})
    seen: list[tuple[VisualTokens, TextGuide]] = field(default_factory=list)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        assert text is not None
        self.seen.append((tokens, text))
        return Selection(indices=torch.zeros(1, dtype=torch.long), total=len(tokens), method=self.name)


@torch.inference_mode()
def ask(model: Any, processor: Any, samples: Iterable[Sample]) -> Iterator[Asked]:
    """Encode images and questions as for pruning. Questions about things that are absent are left out.

    Args:
        model: The model.
        processor: Its processor.
        samples: The questions.
    """
    recorder = _Recorder(keep=1)
    with attach(model, processor, method=recorder):
        for sample in samples:
            if not sample.boxes:
                continue
            model(**build_inputs(processor, [sample.image], [sample.question]), logits_to_keep=1)
            tokens, text = recorder.seen.pop()
            mentions = find_mentions(sample.question)
            yield Asked(
                scene=sample.scene,
                dense=sample.dense,
                tokens=tokens,
                text=text,
                things=torch.stack([cells_in_boxes(tokens.grids[0], [box]) for box in sample.boxes]),
                names_all=sample.kind in NAMING_KINDS and bool(mentions),
                mentioned=mark_words(text.words or (), sample.question, [(start, end) for start, end, _ in mentions]),
            )


def mark_words(words: Sequence[str], question: str, spans: Sequence[tuple[int, int]]) -> Tensor:
    """Mark the words that lie in one of the spans of a question. Words follow each other in it."""
    marks, position, lowered = [], 0, question.lower()
    for word in words:
        start = lowered.find(word.strip().lower(), position)
        position = max(start, position)
        marks.append(any(first <= start < last for first, last in spans))
    return torch.tensor(marks, dtype=torch.bool)


def measure(asked: Asked, settings: dict[str, Any], keep: int) -> dict[Measure, float]:
    """Measure what EADP with some settings does for a question.

    Args:
        asked: The question.
        settings: Settings of EADP.
        keep: The budget.
    """
    selection = EADP(keep=keep, **settings).select(asked.tokens, asked.text)
    kept, inside = selection.mask, asked.things.any(0)
    assert selection.scores is not None
    found: dict[Measure, float] = {
        "tokens": kept[inside].float().mean().item(),
        "things": (asked.things & kept).any(1).float().mean().item(),
    }
    if asked.names_all:
        found["pointing"] = rank_auc(selection.scores, inside, ~inside)
    return found


def entropies(asked: Asked) -> tuple[float, float] | None:
    """Return the mean entropy of the words that name things, and of the others; None if a question lacks either."""
    relevance = EADP(keep=1).relevance(asked.tokens, asked.text)
    named = asked.mentioned
    if not named.any() or named.all():
        return None
    return relevance.word_entropy[named].mean().item(), relevance.word_entropy[~named].mean().item()


@dataclass(frozen=True)
class Comparison:
    """What the paper says is better, and what it says is worse, on the same questions.

    Attributes:
        better: The mean with the settings that the paper says are better.
        worse: The mean with the others.
        difference: Better minus worse.
        interval: The 95 % interval of the difference, by bootstrap over scenes.
        questions: The number of questions.
    """

    better: float
    worse: float
    difference: float
    interval: tuple[float, float]
    questions: int

    @property
    def verdict(self) -> Verdict:
        """Whether the claim holds: the interval is above 0. It does not if it is below, or all but 0."""
        low, high = self.interval
        if low > 0 and high >= NO_DIFFERENCE:
            return "holds"
        return "does not hold" if high < NO_DIFFERENCE and (high < 0 or low > -NO_DIFFERENCE) else "cannot be told"


def compare(better: Sequence[float], worse: Sequence[float], scenes: Sequence[int]) -> Comparison:
    """Compare two settings on the same questions. Questions about one scene are not independent: they count as one.

    Args:
        better: One value per question.
        worse: One value per question.
        scenes: The scene of each question.
    """
    by_scene: dict[int, list[int]] = {}
    for number, scene in enumerate(scenes):
        by_scene.setdefault(scene, []).append(number)
    left, right = (
        [float(np.mean([values[i] for i in rows])) for rows in by_scene.values()] for values in (better, worse)
    )
    difference, low, high = paired_difference(left, right)
    return Comparison(float(np.mean(left)), float(np.mean(right)), difference, (low, high), len(better))
