"""Average pooling: the control that averages tokens instead of dropping them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from eadp.core import Selection, TextGuide, VisualTokens, even_cells, split_evenly
from eadp.core.merging import BlockMerge, group_means, join_blocks
from eadp.methods.base import register_method
from eadp.methods.before import BeforeMethod


@register_method
@dataclass(frozen=True)
class Pool(BeforeMethod):
    """Average the tokens of each of T even cells (`core.even_cells`); the mean replaces the cell's central token.

    The cells tile the grid, so that every token contributes to exactly one mean. If T = h'·w' with nearly square cells,
    this is pooling to a regular grid. For other T some rows of cells have one cell more than others, so that T is
    always exact. Crops or frames share the budget equally; a crop without a share is dropped.

    Paper: none, a control.
    """

    name: ClassVar[str] = "pool"
    citation: ClassVar[str] = "control"
    merges: ClassVar[bool] = True

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        quotas = split_evenly(tokens.grids, self.count_to_keep(len(tokens)))
        parts = []
        for grid, quota in zip(tokens.grids, quotas, strict=True):
            if quota:
                cell_of_token, centres = even_cells(grid, quota)
                parts.append(BlockMerge(centres, group_means(cell_of_token, quota)))
            else:
                parts.append(BlockMerge(torch.zeros(0, dtype=torch.long)))
        indices, merge = join_blocks(parts, [block.stop - block.start for block in tokens.blocks])
        return Selection(indices, len(tokens), self.name, quotas=tuple(quotas), merge=merge)
