"""The data of a figure or report: an image or clip, a question, and what each method kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from PIL import Image
from torch import Tensor

from eadp.core import Grid, Layout, Relevance, Selection
from eadp.view.replay import Replay, replay_picks


@dataclass(frozen=True)
class TimedAnswer:
    """The answer of a model, and how long its prefill took.

    Attributes:
        text: The answer.
        prefill: Median prefill time in milliseconds: vision tower, text guide, selection and language model.
    """

    text: str
    prefill: float


@dataclass(frozen=True)
class MethodResult:
    """What one method kept.

    Attributes:
        selection: The kept tokens.
        answer: The answer of the model from these tokens; None if no model was asked.
    """

    selection: Selection
    answer: TimedAnswer | None = None

    @property
    def name(self) -> str:
        """Name of the method."""
        return self.selection.method

    @property
    def heatmap(self) -> Tensor | None:
        """N, the scores that the method selected by, before polarization; None if it uses no scores."""
        relevance, scores = self.selection.relevance, self.selection.scores
        if relevance is not None and relevance.smoothed is not None:
            return relevance.smoothed
        return scores if scores is not None and len(scores) == self.selection.total else None

    @property
    def order(self) -> Tensor | None:
        """K, the kept tokens in the order of picking; None if the method selects them all at once."""
        order = self.selection.order
        return order if order is not None and len(order) == len(self.selection) else None


@dataclass(frozen=True)
class Comparison:
    """The selections of several methods for one question about one image or clip.

    Attributes:
        images: The image, or one image per frame, that the N tokens lie on.
        question: The question.
        grids: Rows and columns of each block of tokens, as in `VisualTokens`.
        results: One result per method.
        layout: How crops lie on the image, as in `VisualTokens`.
        features: N×d, the tokens that the language model would receive. They show which token represents which.
        relevance: EADP's relevance for this question: its words, and the weights of the coverage of every method.
        unpruned: The answer with all tokens; None if no model was asked.
        notes: Sentences to show below the results.

    Raises:
        ValueError: If there is no result, or if the grids do not hold the tokens of a selection.
    """

    images: Sequence[Image.Image]
    question: str
    grids: Sequence[Grid]
    results: Sequence[MethodResult]
    layout: Layout | None = None
    features: Tensor | None = None
    relevance: Relevance | None = None
    unpruned: TimedAnswer | None = None
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.results:
            raise ValueError("there is nothing to show: give the result of at least one method")
        for result in self.results:
            if result.selection.total != self.total:
                raise ValueError(
                    f"grids {list(self.grids)} hold {self.total} tokens, but {result.name} chose among "
                    f"{result.selection.total}: give the grids of this image, as in pruned.images"
                )

    @property
    def is_clip(self) -> bool:
        """Whether there are several images: the frames of a clip."""
        return len(self.images) > 1

    @property
    def total(self) -> int:
        """N, the number of tokens before pruning."""
        return sum(rows * columns for rows, columns in self.grids)

    @property
    def blocks(self) -> list[slice]:
        """The tokens of each block."""
        ends = list(accumulate(rows * columns for rows, columns in self.grids))
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    @property
    def words(self) -> list[tuple[str, float, bool]]:
        """Each word of the question, its entropy, and whether it is used; empty if the words are unknown."""
        if self.relevance is None or self.relevance.words is None:
            return []
        entropy, kept = self.relevance.word_entropy.tolist(), self.relevance.word_kept.tolist()
        return list(zip(self.relevance.words, entropy, kept, strict=True))

    @cached_property
    def replays(self) -> list[Replay | None]:
        """The picks of each method, replayed; None without features or weights."""
        weights = None if self.relevance is None else self.relevance.polarized
        if self.features is None or weights is None:
            return [None] * len(self.results)
        return [
            replay_picks(self.features, weights, self.blocks, result.order, result.selection.indices)
            for result in self.results
        ]
