"""The base class of methods that prune inside the language model: where they cut, and what they see there."""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from eadp.core import Selection, checks, rank_descending
from eadp.core.block_layout import BlockLayout
from eadp.core.deferred import Deferred
from eadp.methods.base import Method, Newlines, Positions

Budget = Literal["after_prune", "layer_mean", "published"]
"""What `keep` counts: tokens after the last cut, the mean over layers, or the mean as the release counts it."""

AttentionFrom = Literal["previous", "next"]
"""The layer whose queries and keys a method sees: the one before the cut, or the one after it."""

DEPTH = 32
"""Layers of the language models for which the papers give their layer numbers."""


@dataclass(frozen=True)
class Cut:
    """A cut at the input of a decoder layer.

    Attributes:
        layer: The layer, counted from 0.
        keep: How many visual tokens stay.
        merged: How many of them are new rows, merged from dropped tokens. They follow the other tokens of their image.
    """

    layer: int
    keep: int
    merged: int = 0


class LayerView(Protocol):
    """What a method sees at a cut, where M of the N visual tokens are left and X words of the prompt follow them.

    The words are the text tokens after the image, since only these attend to it. Where there are none, they are all
    text tokens of the prompt.
    """

    @property
    def visual(self) -> Tensor:
        """M×d, hidden states of the visual tokens at the input of the layer."""

    @property
    def text(self) -> Tensor:
        """X×d, hidden states of the words at the input of the layer."""

    @property
    def visual_keys(self) -> Tensor:
        """M×k, keys of the visual tokens in the layer that `InsideMethod.attention_from` names, heads concatenated."""

    @property
    def text_keys(self) -> Tensor:
        """X×k, keys of the words in that layer."""

    @property
    def visual_inputs(self) -> Tensor:
        """N×d, all tokens of the image as they entered the language model."""

    @property
    def text_inputs(self) -> Tensor:
        """X×d, the words as they entered the language model."""

    @property
    def visual_places(self) -> Tensor:
        """M, the index of each visual token in the sequence that entered the language model."""

    @property
    def text_places(self) -> Tensor:
        """X, the index of each word in that sequence."""

    def normed(self, states: Tensor) -> Tensor:
        """Apply the final norm of the language model to hidden states, …×d."""

    def attention(self, words: Tensor | None = None) -> Tensor:
        """Return R×M, the attention of some words to each visual token: softmax over the sequence, mean over heads.

        Args:
            words: R indices of words in 0 … X − 1. None: only the last token of the prompt, 1×M.
        """


@dataclass(frozen=True)
class InsideMethod(Method):
    """A method that lets all visual tokens enter the language model and drops some between its layers.

    The cuts and the number of tokens that each leaves are decided here, before anything is seen. Subclasses implement
    `choose`, which selects tokens at one cut among those that are left.

    Attributes:
        attention_from: The layer whose queries and keys `LayerView` shows.
        budgets: The values that `budget` may have.
        layers: After how many layers of 32 tokens are dropped. For other depths they are scaled: see `scale_layers`.
        budget: What `keep` counts: "after_prune", the tokens left after the last cut, or "layer_mean", the mean over
            layers of the tokens that each processes.
    """

    positions: ClassVar[Positions] = "keep"
    newlines: ClassVar[Newlines] = "kept rows"
    attention_from: ClassVar[AttentionFrom] = "previous"
    budgets: ClassVar[tuple[Budget, ...]] = ("after_prune", "layer_mean")

    layers: tuple[int, ...] = (2,)
    budget: Budget = field(default="after_prune", kw_only=True)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A subclass with a `choose` of its own must not get the `choose_batch` of its base class.
        if "choose" in cls.__dict__ and "choose_batch" not in cls.__dict__:
            type.__setattr__(cls, "choose_batch", InsideMethod.choose_batch)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.known("budget", self.budget, self.budgets)
        if not self.layers or list(self.layers) != sorted({*self.layers}) or not self.layers[0] >= 1:
            raise ValueError(f"layers must rise from at least 1, such as (8, 16, 24), got {self.layers}")
        if self.layers[-1] >= DEPTH:
            raise ValueError(f"layers are given for {DEPTH} layers, so they must stay below it, got {self.layers}")

    @abstractmethod
    def choose(self, cut: Cut, view: LayerView) -> Selection:
        """Select exactly `cut.keep` of the M tokens that are left.

        Where some are merged, `Selection.rows` lists the merged ones last.
        """

    def choose_batch(self, cuts: Sequence[Cut], views: Sequence[LayerView]) -> list[Selection]:
        """Select the tokens of several prompts at one layer; called on devices. By default, one prompt after another.

        Args:
            cuts: The cut of each prompt.
            views: What the method sees of each prompt.
        """
        return [self.choose(cut, view) for cut, view in zip(cuts, views, strict=True)]

    def cuts(self, total: int, depth: int) -> tuple[Cut, ...]:
        """Return the cuts for `total` visual tokens in a language model of `depth` layers."""
        if self.keep is None:
            return self.default_cuts(total, depth)
        budget = self.compute_budget(total)
        if budget >= total:
            return ()
        if self.budget == "after_prune":
            return self.cuts_leaving(budget, total, depth)
        return self.cuts_with_mean(budget, total, depth)

    def compute_budget(self, total: int) -> float:
        """Return what `keep` asks for among `total` tokens: a count that is at most `total`."""
        return min(self.keep, total) if isinstance(self.keep, int) else self.count_to_keep(total)

    def default_cuts(self, total: int, depth: int) -> tuple[Cut, ...]:
        """Return the cuts where `keep` is not given."""
        raise ValueError(f"{self.name} needs keep= (a count such as 128, or a share such as 0.25)")

    def cuts_leaving(self, after: float, total: int, depth: int) -> tuple[Cut, ...]:
        """Return the cuts that leave `after` tokens after the last one."""
        return self.place_cuts(self.counts_after_cuts(after, total), depth)

    def cuts_with_mean(self, mean: float, total: int, depth: int) -> tuple[Cut, ...]:
        """Return the cuts that leave the most tokens while layers process at most `mean` on average."""

        def mean_if_left(after: int) -> float:
            return self.compute_mean(self.cuts_leaving(after, total, depth), total, depth)

        most = bisect_right([*range(1, total + 1)], float(mean), key=mean_if_left)
        if most == 0:
            lowest = self.cuts_leaving(1, total, depth)
            raise ValueError(
                f"{self.name} cannot reach a mean of {mean} tokens over {depth} layers: the first {lowest[0].layer} "
                f"see all {total}. The lowest it can reach is {mean_if_left(1):.1f}, with {lowest[-1].keep} left after "
                "the last cut"
            )
        return self.cuts_leaving(most, total, depth)

    def compute_mean(self, cuts: Sequence[Cut], total: int, depth: int) -> float:
        """Return the mean over layers that `keep` counts."""
        return mean_tokens_per_layer(cuts, total, depth)

    def counts_after_cuts(self, after: float, total: int) -> tuple[int, ...]:
        """Return the tokens left after each of S cuts, T = `after` in the end; each cut keeps the share (T/N)^(1/S)."""
        steps = len(self.layers)
        return tuple(max(1, round(total * (after / total) ** (step / steps))) for step in range(1, steps + 1))

    def place_cuts(self, counts: Sequence[int], depth: int) -> tuple[Cut, ...]:
        """Return cuts at the scaled `layers` that leave `counts`; of several at one layer only the last is made."""
        keep_by_layer = dict(zip(scale_layers(self.layers, depth), counts, strict=True))
        return tuple(Cut(layer, keep) for layer, keep in keep_by_layer.items())


def scale_layers(layers: Sequence[int], depth: int) -> tuple[int, ...]:
    """Scale layer numbers given for 32 layers to another depth: round(layer · depth / 32), within 1 … depth − 1."""
    if depth < 2:
        raise ValueError(f"a language model of {depth} layer cannot be cut between its layers; use a method before it")
    return tuple(min(max(1, int(layer * depth / DEPTH + 0.5)), depth - 1) for layer in layers)


def tokens_per_layer(cuts: Sequence[Cut], total: int, depth: int) -> tuple[int, ...]:
    """Return how many of `total` visual tokens each of `depth` layers processes."""
    keep_by_layer, counts = {cut.layer: cut.keep for cut in cuts}, []
    for layer in range(depth):
        total = min(total, keep_by_layer.get(layer, total))
        counts.append(total)
    return tuple(counts)


def mean_tokens_per_layer(cuts: Sequence[Cut], total: int, depth: int) -> float:
    """Return the mean over layers of the visual tokens that each processes."""
    return sum(tokens_per_layer(cuts, total, depth)) / depth


def note_missing_attention(scores: Tensor) -> tuple[str, ...]:
    """Return a note if no attention reaches the tokens, as beyond a sliding window, where all scores are 0."""
    return () if bool(scores.any()) else ("no attention reaches these tokens: the first of them stay",)


def select_highest(scores: Tensor, cut: Cut, method: str) -> Selection:
    """Select the tokens with the highest scores; of equal ones the first."""
    (selection,) = select_highest_of_all([scores], [cut], method)
    return selection


def select_highest_of_all(scores: Sequence[Tensor], cuts: Sequence[Cut], method: str) -> list[Selection]:
    """Do as `select_highest` does for several prompts, on a device for all of them at once and without waiting."""
    device = scores[0].device
    layout = BlockLayout.following([len(each) for each in scores], device)
    together = layout.stack(scores[0] if len(scores) == 1 else torch.cat(list(scores)))
    if not layout.is_regular:
        together = together.where(layout.is_token, -math.inf)
    keeps = [cut.keep for cut in cuts]
    kept = rank_descending(together)[:, : max(keeps)]
    if min(keeps) < max(keeps):
        is_kept = torch.arange(max(keeps)) < torch.tensor(keeps)[:, None]
        kept = kept.where(is_kept.to(device), layout.largest)
    kept = kept.sort(dim=1).values

    def selection(indices: Tensor, of_prompt: Tensor) -> Selection:
        notes: Any = Deferred(lambda: note_missing_attention(of_prompt))
        return Selection(
            indices, len(of_prompt), method, scores=of_prompt, notes=notes() if device.type == "cpu" else notes
        )

    return [selection(row[:keep], each) for row, keep, each in zip(kept, keeps, scores, strict=True)]
