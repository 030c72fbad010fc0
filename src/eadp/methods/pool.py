"""Average pooling: the control that throws nothing away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from eadp.core import Selection, TextGuide, VisualTokens, even_cells, split_evenly
from eadp.core.merging import BlockMerge, group_means, join_blocks
from eadp.methods.base import Method


@dataclass(frozen=True)
class Pool(Method):
    """Average the tokens of each of T even cells (`core.even_cells`); the mean stands at the cell's central token.

    Cells tile the grid, so that every token counts in exactly one mean. T = h'·w' with nearly square cells is pooling
    to a regular grid; another T has some rows of cells with one cell more than others, so that T is always exact.
    Crops or frames share the budget alike; one that gets no token is lost.

    Paper: none, a control.
    """

    name: ClassVar[str] = "pool"
    citation: ClassVar[str] = "control"
    merges: ClassVar[bool] = True

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        quotas = split_evenly(tokens.grids, self.count(len(tokens)))
        parts = []
        for (rows, columns), quota in zip(tokens.grids, quotas, strict=True):
            if quota:
                owner, centres = even_cells((rows, columns), quota)
                parts.append(BlockMerge(centres, group_means(owner, quota)))
            else:
                parts.append(BlockMerge(torch.zeros(0, dtype=torch.long)))
        indices, merge = join_blocks(parts, [block.stop - block.start for block in tokens.blocks])
        return Selection(indices, len(tokens), self.name, quotas=tuple(quotas), merge=merge)
