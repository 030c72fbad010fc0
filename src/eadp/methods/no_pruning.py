"""No pruning: the baseline that keeps every token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from eadp.core import Selection, TextGuide, VisualTokens
from eadp.methods.base import Newlines, Positions, register_method
from eadp.methods.before import BeforeMethod


@register_method
@dataclass(frozen=True)
class NoPruning(BeforeMethod):
    """Keep every token.

    It stands for the unpruned model wherever a method is named. It takes no `keep`.

    Paper: none, a control.
    """

    name: ClassVar[str] = "none"
    citation: ClassVar[str] = "control"
    positions: ClassVar[Positions] = "keep"
    newlines: ClassVar[Newlines] = "all"
    takes_budget: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep is not None:
            raise ValueError(f"{self.name} keeps every token: leave out keep={self.keep}")

    def count_to_keep(self, total: int) -> int:
        return total

    def count_sent(self, patches: int, newlines: int = 0, has_layout: bool = True) -> int:
        return patches + newlines

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        indices = torch.arange(len(tokens))
        return Selection(indices, len(tokens), self.name, quotas=tokens.quotas(indices))
