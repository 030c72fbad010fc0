"""DART: keep what is least like a few pivots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from eadp.core import Selection, checks, rank_descending
from eadp.methods.inside import Cut, InsideMethod, LayerView

Turn = Literal["release", "norm"]


@dataclass(frozen=True)
class Pivots:
    """visual: of the M visual tokens, text: of the X words; each by falling norm of their keys.

    turn: in which turn they take tokens; counted through, the visual ones first.
    """

    visual: Tensor
    text: Tensor
    turn: Tensor


@dataclass(frozen=True)
class DART(InsideMethod):
    """At the input of layer K, pivots are the visual tokens and the words of largest L1 key norm. Visual pivots stay.
    Then each pivot in turn takes its share of the tokens that are left: those whose hidden states are least similar to
    its own.

    Paper: "Stop Looking for Important Tokens in Multimodal Language Models: Duplication Matters More" (EMNLP 2025). The
    default is its release as ported to LLMC: K = 2; four pivots of each kind by the keys of layer K − 1 as its cache
    holds them, text pivots only from behind the image; cosines behind the model's final norm; each of P pivots takes
    ⌊keep/P⌋ tokens, so that with the V visual pivots V + P·⌊keep/P⌋ stay: 132 for keep=128. Given as a share, keep is
    the real number N·share before that division. Tokens keep their positions.
    Departures: `exact=True` keeps `keep` tokens, pivots included, for comparisons at equal budgets; `turn="norm"` lets
    pivots take in a turn that does not depend on where the image stands. Where fewer words follow the image than there
    are to be text pivots, the pivots that there are share what is to be taken. K scales with the model's depth.
    """

    name: ClassVar[str] = "dart"
    citation: ClassVar[str] = "Stop Looking for Important Tokens: Duplication Matters More (EMNLP 2025)"

    visual_pivots: int = 4
    text_pivots: int = 4
    exact: bool = False
    """Keep exactly `keep` tokens: what pivots cannot share evenly goes to the first ones."""
    turn: Turn = "release"
    """Whose turn it is: that in which Python iterates over a set of the pivots' places in the sequence ("release"), or
    the visual pivots and then the words, each by falling norm ("norm")."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("visual_pivots + text_pivots", self.visual_pivots + self.text_pivots)
        checks.known("turn", self.turn, get_args(Turn))

    def asked(self, total: int) -> float:
        return self.keep * total if isinstance(self.keep, float) else super().asked(total)

    def counts(self, after: float, total: int) -> tuple[int, ...]:
        steps = len(self.layers)
        budgets = (total * (after / total) ** (step / steps) for step in range(1, steps))
        return tuple(self.left(budget, total) for budget in (*budgets, after))

    def left(self, budget: float, total: int) -> int:
        """How many of `total` tokens a budget leaves."""
        if self.exact:
            return max(1, round(budget))
        pivots = self.visual_pivots + self.text_pivots
        return min(max(1, self.visual_pivots + pivots * int(budget / pivots)), total)

    def choose(self, cut: Cut, view: LayerView) -> Selection:
        pivots = self.pivots(view)
        order = torch.cat([pivots.visual[: cut.keep], *self.taken(cut, view, pivots)])
        return Selection(order.sort().values, len(view.visual), self.name, order=order)

    def pivots(self, view: LayerView) -> Pivots:
        """The pivots among the visual tokens and among the words behind them."""
        behind = (view.text_places > view.visual_places.max()).nonzero().flatten().to(view.text_keys.device)
        visual = largest(view.visual_keys, self.visual_pivots)
        text = behind[largest(view.text_keys[behind], self.text_pivots)]
        if not len(visual) + len(text):
            raise ValueError("dart finds no words behind the image to be its pivots; give it visual_pivots too")
        turn = torch.arange(len(visual) + len(text), device=visual.device)
        if self.turn == "release":
            places = torch.cat([view.visual_places[visual.cpu()], view.text_places[text.cpu()]]).tolist()
            turn = turn[[places.index(place) for place in set_order(places)]]
        return Pivots(visual, text, turn)

    def taken(self, cut: Cut, view: LayerView, pivots: Pivots) -> list[Tensor]:
        """What each pivot takes, in turn, the least similar first."""
        visual = F.normalize(view.normed(view.visual).float(), dim=-1)
        words = F.normalize(view.normed(view.text[pivots.text]).float(), dim=-1)
        similarity = torch.cat([visual[pivots.visual], words])[pivots.turn] @ visual.T
        similarity[:, pivots.visual] = torch.inf
        share, more = divmod(max(0, cut.keep - len(pivots.visual)), len(similarity))
        taken = []
        for index, row in enumerate(similarity):
            taken.append(rank_descending(-row)[: share + (index < more)])
            similarity[:, taken[-1]] = torch.inf
        return taken


def largest(keys: Tensor, count: int) -> Tensor:
    """The tokens whose keys, n×k, have the largest L1 norm, by falling norm."""
    return rank_descending(keys.float().abs().sum(-1))[:count]


def set_order(places: Sequence[int]) -> list[int]:
    """Different whole numbers from 0 on in the order in which CPython iterates over a set into which they were put.

    The set is a table of 2^m slots, 8 at first. A number goes to the slot of its last m bits; where that is taken, to
    the first free one of the nine behind it, if all nine are in the table; then on to slot 5·i + 1 + p, where p are the
    number's higher bits, five fewer each time. Once three fifths of the table are full it grows, to more than four
    times as many slots as numbers, and all move over in the order of their slots.
    """
    slots: list[int | None] = [None] * 8
    for count, place in enumerate(places, start=1):
        slots[_free(slots, place)] = place
        if 5 * count >= 3 * (len(slots) - 1):
            former = [each for each in slots if each is not None]
            slots = [None] * (1 << (4 * count).bit_length())
            for each in former:
                slots[_free(slots, each)] = each
    return [each for each in slots if each is not None]


def _free(slots: list[int | None], place: int) -> int:
    last = len(slots) - 1
    slot, higher = place & last, place
    while True:
        near = range(slot, slot + 10 if slot + 9 <= last else slot + 1)
        if (free := next((each for each in near if slots[each] is None), None)) is not None:
            return free
        higher >>= 5
        slot = (5 * slot + 1 + higher) & last
