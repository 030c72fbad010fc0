"""DART: keep what is least like a few pivots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from eadp.core import Selection, checks, ranked
from eadp.methods.inside import Cut, InsideMethod, LayerView, highest


@dataclass(frozen=True)
class DART(InsideMethod):
    """At the input of layer K, pivots are the visual tokens and the words of largest L1 key norm. Each pivot in turn
    keeps its share of the tokens that are left: those whose hidden states are least similar to its own.

    Paper: "Stop Looking for Important Tokens in Multimodal Language Models: Duplication Matters More" (EMNLP 2025).
    Defaults: K = 2, four pivots of each kind. Where that leaves a choice: keys are those of layer K − 1 as its cache
    holds them, after RoPE; visual pivots come first, each kind by falling norm; of T tokens each of P pivots keeps
    ⌊T/P⌋, and the first T mod P one more; pivots are candidates like all others. K scales with the model's depth.
    """

    name: ClassVar[str] = "dart"
    citation: ClassVar[str] = "Stop Looking for Important Tokens: Duplication Matters More (EMNLP 2025)"

    visual_pivots: int = 4
    text_pivots: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("visual_pivots + text_pivots", self.visual_pivots + self.text_pivots)

    def choose(self, cut: Cut, view: LayerView) -> Selection:
        pivots = torch.cat(
            [
                largest_keys(view.visual, view.visual_keys, self.visual_pivots),
                largest_keys(view.text, view.text_keys, self.text_pivots),
            ]
        )
        order = least_similar(view.visual, pivots, cut.keep)
        return Selection(order.sort().values, len(view.visual), self.name, order=order)


def largest_keys(states: Tensor, keys: Tensor, count: int) -> Tensor:
    """The hidden states of the tokens whose keys have the largest L1 norm, by falling norm."""
    return states[ranked(keys.float().abs().sum(-1))[:count]]


def least_similar(states: Tensor, pivots: Tensor, count: int) -> Tensor:
    """`count` tokens in the order in which the pivots keep them, each pivot its share of those that are left."""
    similarity = F.normalize(pivots.float(), dim=-1) @ F.normalize(states.float(), dim=-1).T
    share, more = divmod(count, len(pivots))
    kept = []
    for index, row in enumerate(similarity):
        farthest = highest(-row, share + (index < more))
        kept.append(farthest)
        similarity[:, farthest] = torch.inf
    return torch.cat(kept)
