"""What the methods inside the language model share: where they cut, how many tokens each cut leaves, what they see."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens, checks, rank_descending
from eadp.methods.base import Method, Newlines, Positions, Stage

Budget = Literal["after_prune", "layer_mean", "published"]
Attends = Literal["previous", "next"]

DEPTH = 32
"""Layers of the language models for which the papers give their layer numbers."""


@dataclass(frozen=True)
class Cut:
    """At the input of decoder layer `layer`, counted from 0, `keep` visual tokens stay.

    merged: how many of them are new rows, made of dropped tokens; these stand behind the others of their image.
    """

    layer: int
    keep: int
    merged: int = 0


class LayerView(Protocol):
    """What a method may look at when it cuts. M of the N visual tokens are left; X words of the prompt come after them.

    The words are the tokens behind the image, which alone can see it; where there are none, all of the prompt's.
    """

    @property
    def visual(self) -> Tensor:
        """M×d, hidden states of the visual tokens at the input of the layer."""

    @property
    def text(self) -> Tensor:
        """X×d, hidden states of the words."""

    @property
    def visual_keys(self) -> Tensor:
        """M×k, keys of the layer that `Method.attends` names, all heads in a row."""

    @property
    def text_keys(self) -> Tensor:
        """X×k."""

    @property
    def visual_inputs(self) -> Tensor:
        """N×d, all the image's tokens as they came into the language model."""

    @property
    def text_inputs(self) -> Tensor:
        """X×d, the words as they came into the language model."""

    @property
    def visual_places(self) -> Tensor:
        """M, where each visual token stands in the sequence that came into the language model, counted from 0."""

    @property
    def text_places(self) -> Tensor:
        """X, likewise for the words."""

    def normed(self, states: Tensor) -> Tensor:
        """Hidden states, …×d, through the norm that the language model has behind its last layer."""

    def attention(self, words: Tensor | None = None) -> Tensor:
        """R×M, how much some words attend to each visual token: softmax over the whole sequence, mean over heads.

        words: R of 0 … X−1. None: the last token of the prompt alone, 1×M.
        """


@dataclass(frozen=True)
class InsideMethod(Method):
    """A method that lets all tokens into the language model and drops some between its layers.

    Subclasses choose at one cut among the tokens that are left; where the cuts are and how many tokens each leaves is
    decided here, before anything is seen.
    """

    stage: ClassVar[Stage] = "inside"
    positions: ClassVar[Positions] = "keep"
    newlines: ClassVar[Newlines] = "kept rows"
    attends: ClassVar[Attends] = "previous"
    """Whose queries and keys the view shows: those of the layer just before the cut, or of the one just behind it."""
    budgets: ClassVar[tuple[Budget, ...]] = ("after_prune", "layer_mean")
    """The ways of counting that `budget` may name."""

    layers: tuple[int, ...] = (2,)
    """After how many layers of 32 tokens are dropped. On other depths they scale: see `scaled`."""
    budget: Budget = field(default="after_prune", kw_only=True)
    """What `keep` counts: the tokens left after the last cut, or the mean over layers of the tokens that each sees."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.known("budget", self.budget, self.budgets)
        if not self.layers or list(self.layers) != sorted({*self.layers}) or not self.layers[0] >= 1:
            raise ValueError(f"layers must rise from at least 1, such as (8, 16, 24), got {self.layers}")
        if self.layers[-1] >= DEPTH:
            raise ValueError(f"layers are given for {DEPTH} layers, so they must stay below it, got {self.layers}")

    @abstractmethod
    def choose(self, cut: Cut, view: LayerView) -> Selection:
        """Exactly `cut.keep` of the M tokens that are left. Where some are merged, `rows` has those last."""

    def cuts(self, total: int, depth: int) -> tuple[Cut, ...]:
        """Where `total` tokens are cut in a language model of this depth, and how many each cut leaves."""
        if self.keep is None:
            return self.default_cuts(total, depth)
        asked = self.asked(total)
        if asked >= total:
            return ()
        if self.budget == "after_prune":
            return self.cuts_to(asked, total, depth)
        return self.cuts_for_mean(asked, total, depth)

    def asked(self, total: int) -> float:
        """What `keep` asks for among `total` tokens."""
        return min(self.keep, total) if isinstance(self.keep, int) else self.count(total)

    def default_cuts(self, total: int, depth: int) -> tuple[Cut, ...]:
        """The cuts where `keep` is not given."""
        raise ValueError(f"{self.name} needs keep= (a count such as 128, or a share such as 0.25)")

    def cuts_to(self, after: float, total: int, depth: int) -> tuple[Cut, ...]:
        """The cuts that leave `after` tokens in the end."""
        return self.at(self.counts(after, total), depth)

    def cuts_for_mean(self, mean: float, total: int, depth: int) -> tuple[Cut, ...]:
        """The cuts that leave most tokens while the layers process no more than `mean` on average."""

        def reached(after: int) -> float:
            return self.mean_of(self.cuts_to(after, total, depth), total, depth)

        most = bisect_right([*range(1, total + 1)], float(mean), key=reached)
        if most == 0:
            lowest = self.cuts_to(1, total, depth)
            raise ValueError(
                f"{self.name} cannot reach a mean of {mean} tokens over {depth} layers: the first {lowest[0].layer} "
                f"see all {total}. The lowest it can reach is {reached(1):.1f}, with {lowest[-1].keep} left after the "
                "last cut"
            )
        return self.cuts_to(most, total, depth)

    def mean_of(self, cuts: Sequence[Cut], total: int, depth: int) -> float:
        """The mean over the layers that `keep` names."""
        return layer_mean(cuts, total, depth)

    def counts(self, after: float, total: int) -> tuple[int, ...]:
        """Tokens left after each of S cuts, T = `after` after the last: each leaves the same share, (T/N)^(1/S)."""
        steps = len(self.layers)
        return tuple(max(1, round(total * (after / total) ** (step / steps))) for step in range(1, steps + 1))

    def at(self, counts: Sequence[int], depth: int) -> tuple[Cut, ...]:
        """Cuts that fall on one layer become one, which leaves what the last of them would."""
        left = dict(zip(scaled(self.layers, depth), counts, strict=True))
        return tuple(Cut(layer, keep) for layer, keep in left.items())

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        raise TypeError(f"{self.name} chooses inside the language model; there is nothing to select from before it")


def scaled(layers: Sequence[int], depth: int) -> tuple[int, ...]:
    """Layer numbers given for 32 layers on a model of another depth: round(layer · depth / 32), from 1 to depth − 1."""
    if depth < 2:
        raise ValueError(f"a language model of {depth} layer cannot be cut between its layers; use a method before it")
    return tuple(min(max(1, int(layer * depth / DEPTH + 0.5)), depth - 1) for layer in layers)


def per_layer(cuts: Sequence[Cut], total: int, depth: int) -> tuple[int, ...]:
    """How many tokens each layer processes."""
    left, counts = {cut.layer: cut.keep for cut in cuts}, []
    for layer in range(depth):
        total = min(total, left.get(layer, total))
        counts.append(total)
    return tuple(counts)


def layer_mean(cuts: Sequence[Cut], total: int, depth: int) -> float:
    """Mean over the layers of the tokens that each processes."""
    return sum(per_layer(cuts, total, depth)) / depth


def highest(scores: Tensor, count: int) -> Tensor:
    """The `count` highest scores, sorted by index; of equal ones the first."""
    return rank_descending(scores)[:count].sort().values


def unseen(scores: Tensor) -> tuple[str, ...]:
    """A note where no attention reaches the tokens: behind a sliding window all of them look alike."""
    return () if bool(scores.any()) else ("no attention reaches these tokens: the first of them stay",)


def kept_by(scores: Tensor, cut: Cut, method: str) -> Selection:
    """The tokens of the highest scores."""
    kept = highest(scores, cut.keep)
    return Selection(kept, len(scores), method, scores=scores, notes=unseen(scores))
