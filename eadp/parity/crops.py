"""Where the tokens of a whole image and of its 2×2 (or other) crops stand in the language model's sequence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eadp.core import Grid


def sequence_of(grid: Grid, layout: Sequence[int]) -> Tensor:
    """Ranks of the tokens of block 0 and of layout's crops, each a grid: block 0, then the mosaic row by row."""
    (rows, columns), (down, along) = grid, layout
    cells = rows * columns
    mosaic = torch.arange(cells, cells + down * along * cells).view(down, along, rows, columns).transpose(1, 2)
    return torch.cat([torch.arange(cells), mosaic.flatten()]).argsort()
