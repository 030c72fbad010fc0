"""From boxes on an image to cells of a grid of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eadp.core.types import Box, Grid


def cells_in_boxes(grid: Grid, boxes: Sequence[Box]) -> Tensor:
    """Mark the cells of a grid that lie in one of the boxes.

    A cell lies in a box if its centre does. A box that is too small to hold any centre has the cell that its own
    centre lies in.

    Args:
        grid: Rows and columns of the grid, which covers the whole image.
        boxes: (top, left, bottom, right) of each box, as shares of the image's height and width.

    Returns:
        rows·columns booleans, row by row.

    Raises:
        ValueError: If a box is not in [0, 1] or has no area.
    """
    rows, columns = grid
    y, x = (torch.arange(rows) + 0.5) / rows, (torch.arange(columns) + 0.5) / columns
    inside = torch.zeros(rows, columns, dtype=torch.bool)
    for box in boxes:
        top, left, bottom, right = box
        if not (0 <= top < bottom <= 1 and 0 <= left < right <= 1):
            raise ValueError(
                f"a box is (top, left, bottom, right) as shares of the image's height and width, in [0, 1], got {box}; "
                "divide pixels by the height and the width"
            )
        cells = ((y >= top) & (y < bottom))[:, None] & ((x >= left) & (x < right))
        if not cells.any():
            cells[int((top + bottom) / 2 * rows), int((left + right) / 2 * columns)] = True
        inside |= cells
    return inside.flatten()
