"""What is looked at: a picture or clip, a question, and what each method kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from PIL import Image
from torch import Tensor

from eadp.core import Grid, Layout, Relevance, Selection
from eadp.view.replay import Replay, replay


@dataclass(frozen=True)
class TimedAnswer:
    """What the model said, and the median time of its prefill in milliseconds, all of it."""

    text: str
    prefill: float


@dataclass(frozen=True)
class MethodResult:
    """What one method kept, and what the model answered from it; None where no model was asked."""

    selection: Selection
    answer: TimedAnswer | None = None

    @property
    def name(self) -> str:
        return self.selection.method

    @property
    def heat(self) -> Tensor | None:
        """N, the map that the method went by, before it was sharpened; None where it went by none."""
        relevance, scores = self.selection.relevance, self.selection.scores
        if relevance is not None and relevance.smoothed is not None:
            return relevance.smoothed
        return scores if scores is not None and len(scores) == self.selection.total else None

    @property
    def order(self) -> Tensor | None:
        """K, the kept tokens as they were picked; None where the method takes them all at once."""
        order = self.selection.order
        return order if order is not None and len(order) == len(self.selection) else None


@dataclass(frozen=True)
class Comparison:
    """One question about one picture or clip, and the methods' choices side by side.

    images:    the picture, or one for each frame; those that the N tokens lie on.
    grids, layout: of the N tokens, as in `VisualTokens`.
    features:  N×d, the tokens as the language model would receive them: they tell which token represents which.
    relevance: EADP's view of the question: its words, and the weights by which coverage is measured for every method.
    whole:     the answer with all tokens.
    """

    images: Sequence[Image.Image]
    question: str
    grids: Sequence[Grid]
    results: Sequence[MethodResult]
    layout: Layout | None = None
    features: Tensor | None = None
    relevance: Relevance | None = None
    whole: TimedAnswer | None = None
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.results:
            raise ValueError("there is nothing to look at: give at least one method")
        for result in self.results:
            if result.selection.total != self.total:
                raise ValueError(
                    f"grids {list(self.grids)} hold {self.total} tokens, but {result.name} chose among "
                    f"{result.selection.total}: give the grids of this picture, as in pruned.images"
                )

    @property
    def is_clip(self) -> bool:
        return len(self.images) > 1

    @property
    def total(self) -> int:
        return sum(rows * columns for rows, columns in self.grids)

    @property
    def blocks(self) -> list[slice]:
        ends = list(accumulate(rows * columns for rows, columns in self.grids))
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    @property
    def words(self) -> list[tuple[str, float, bool]]:
        """How each of the question's tokens reads, its entropy, and whether it stays; none where nobody said."""
        if self.relevance is None or self.relevance.words is None:
            return []
        entropy, kept = self.relevance.word_entropy.tolist(), self.relevance.word_kept.tolist()
        return list(zip(self.relevance.words, entropy, kept, strict=True))

    @cached_property
    def replays(self) -> list[Replay | None]:
        """How each method's tokens come to represent the others, pick by pick; None without features or weights."""
        weights = None if self.relevance is None else self.relevance.polarized
        if self.features is None or weights is None:
            return [None] * len(self.results)
        return [
            replay(self.features, weights, self.blocks, result.order, result.selection.indices)
            for result in self.results
        ]
