"""DART: keep the tokens that are least similar to a few pivots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from eadp.core import Selection, checks, rank_descending
from eadp.methods.base import register_method
from eadp.methods.inside import Cut, InsideMethod, LayerView
from eadp.methods.settings import Range

if TYPE_CHECKING:
    from typing_extensions import Self

Turn = Literal["release", "norm"]


@dataclass(frozen=True)
class Pivots:
    """The pivots of one cut.

    Attributes:
        visual: Indices among the M visual tokens, by falling key norm.
        text: Indices among the X words, by falling key norm.
        turn: The order in which the pivots take tokens, as indices into visual pivots followed by text pivots.
    """

    visual: Tensor
    text: Tensor
    turn: Tensor


@register_method
@dataclass(frozen=True)
class DART(InsideMethod):
    """At the input of layer K, keep a few pivots and the tokens that are least similar to them.

    Pivots are the visual tokens and the words with the largest L1 norm of their keys. Visual pivots stay. Then each
    pivot in turn takes its share of the remaining tokens: those whose hidden states are least similar to its own.

    Paper: "Stop Looking for Important Tokens in Multimodal Language Models: Duplication Matters More", EMNLP 2025.

    Release as ported to LLMC, the default: K = 2. There are four pivots of each kind, by the keys that layer K − 1
    caches; text pivots follow the image. Cosines are taken after the model's final norm. Each of P pivots takes
    ⌊keep/P⌋ tokens, so that with V visual pivots V + P·⌊keep/P⌋ tokens stay: 132 for keep=128. A share is the real
    number N·share before that division. Tokens keep their positions.

    Departures: `exact=True` and `turn="norm"`. If fewer words follow the image than there should be text pivots, the
    pivots that exist share the tokens. K scales with the depth of the model.

    Attributes:
        visual_pivots: How many visual tokens are pivots.
        text_pivots: How many words are pivots.
        exact: Keep exactly `keep` tokens, pivots included, for comparisons at equal budgets. Tokens that the pivots
            cannot share evenly go to the first pivots.
        turn: The order of the pivots. "release": that in which Python iterates over a set of their indices in the
            sequence, so it depends on where the image stands. "norm": visual pivots, then words, each by falling norm.
    """

    name: ClassVar[str] = "dart"
    citation: ClassVar[str] = "Stop Looking for Important Tokens: Duplication Matters More (EMNLP 2025)"

    visual_pivots: Annotated[int, Range(0, 1024)] = 4
    """Pivots among the visual tokens. Release."""
    text_pivots: Annotated[int, Range(0, 1024)] = 4
    """Pivots among the words. Release."""
    exact: bool = False
    turn: Turn = "release"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("visual_pivots + text_pivots", self.visual_pivots + self.text_pivots)

    def with_exact_count(self) -> Self:
        return replace(self, exact=True)

    def compute_budget(self, total: int) -> float:
        return self.keep * total if isinstance(self.keep, float) else super().compute_budget(total)

    def counts_after_cuts(self, after: float, total: int) -> tuple[int, ...]:
        steps = len(self.layers)
        budgets = (total * (after / total) ** (step / steps) for step in range(1, steps))
        return tuple(self.count_left(budget, total) for budget in (*budgets, after))

    def count_left(self, budget: float, total: int) -> int:
        """Return how many of `total` tokens stay for a budget."""
        if self.exact:
            return max(1, round(budget))
        pivots = self.visual_pivots + self.text_pivots
        return min(max(1, self.visual_pivots + pivots * int(budget / pivots)), total)

    def choose(self, cut: Cut, view: LayerView) -> Selection:
        pivots = self.find_pivots(view)
        order = torch.cat([pivots.visual[: cut.keep], *self.share_tokens(cut, view, pivots)])
        return Selection(order.sort().values, len(view.visual), self.name, order=order)

    def find_pivots(self, view: LayerView) -> Pivots:
        """Return the pivots among the visual tokens and among the words after them."""
        after_image = (view.text_places > view.visual_places.max()).nonzero().flatten().to(view.text_keys.device)
        visual = largest_keys(view.visual_keys, self.visual_pivots)
        text = after_image[largest_keys(view.text_keys[after_image], self.text_pivots)]
        if not len(visual) + len(text):
            raise ValueError("dart finds no words after the image to use as pivots; set visual_pivots too")
        turn = torch.arange(len(visual) + len(text), device=visual.device)
        if self.turn == "release":
            places = torch.cat([view.visual_places[visual.cpu()], view.text_places[text.cpu()]]).tolist()
            turn = turn[[places.index(place) for place in set_order(places)]]
        return Pivots(visual, text, turn)

    def share_tokens(self, cut: Cut, view: LayerView, pivots: Pivots) -> list[Tensor]:
        """Return the tokens that each pivot takes, in the order of their turns, the least similar first."""
        visual = F.normalize(view.normed(view.visual).float(), dim=-1)
        words = F.normalize(view.normed(view.text[pivots.text]).float(), dim=-1)
        similarity = torch.cat([visual[pivots.visual], words])[pivots.turn] @ visual.T
        similarity[:, pivots.visual] = torch.inf
        share, rest = divmod(max(0, cut.keep - len(pivots.visual)), len(similarity))
        shares = []
        for index, row in enumerate(similarity):
            shares.append(rank_descending(-row)[: share + (index < rest)])
            similarity[:, shares[-1]] = torch.inf
        return shares


def largest_keys(keys: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` keys with the largest L1 norm, by falling norm; keys: n×k."""
    return rank_descending(keys.float().abs().sum(-1))[:count]


def set_order(numbers: Sequence[int]) -> list[int]:
    """Return distinct non-negative integers in the order in which CPython iterates over a set of them.

    CPython's set is a table of 2^m slots, 8 at first. A number's slot is its last m bits. If that slot is taken, the
    first free one of the next nine is used, provided all nine lie in the table. If none is free, the search continues
    at slot 5·i + 1 + p, where p is the number shifted right by five more bits each time. Once the table is three fifths
    full it grows to the first power of two above four times the count, and the numbers are inserted again in the order
    of their slots.
    """
    slots: list[int | None] = [None] * 8
    for count, number in enumerate(numbers, start=1):
        slots[_find_free_slot(slots, number)] = number
        if 5 * count >= 3 * (len(slots) - 1):
            former = [each for each in slots if each is not None]
            slots = [None] * (1 << (4 * count).bit_length())
            for each in former:
                slots[_find_free_slot(slots, each)] = each
    return [each for each in slots if each is not None]


def _find_free_slot(slots: list[int | None], number: int) -> int:
    last = len(slots) - 1
    slot, shifted = number & last, number
    while True:
        near = range(slot, slot + 10 if slot + 9 <= last else slot + 1)
        if (free := next((each for each in near if slots[each] is None), None)) is not None:
            return free
        shifted >>= 5
        slot = (5 * slot + 1 + shifted) & last
