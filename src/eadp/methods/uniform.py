"""Uniform sampling: the control that keeps an even grid of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from eadp.core import Selection, TextGuide, VisualTokens, even_cells, split_evenly
from eadp.methods.base import register_method
from eadp.methods.before import BeforeMethod


@register_method
@dataclass(frozen=True)
class Uniform(BeforeMethod):
    """Keep T tokens on an even grid: the central token of each of T even cells (`core.even_cells`).

    Crops or frames share the budget equally, and each has a grid of its own.

    Paper: none, a control.
    """

    name: ClassVar[str] = "uniform"
    citation: ClassVar[str] = "control"

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        quotas = split_evenly(tokens.grids, self.count_to_keep(len(tokens)))
        indices = torch.cat(
            [
                even_cells(grid, quota)[1] + block.start
                for grid, block, quota in zip(tokens.grids, tokens.blocks, quotas, strict=True)
                if quota
            ]
        )
        return Selection(indices, len(tokens), self.name, quotas=tuple(quotas))
