"""Images cut into crops: the whole image first, then the crops, joined again with a newline after each row.

The models unpad the joined crops: rows or columns that show no image go. Which crop and cell each packed token came
from is read off by packing a tensor of numbers in place of the features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eadp.core.types import Box, Grid
from eadp.models.family import Picture

NEWLINE = -1


def picture(packed: Tensor, side: int, crops: Grid, states: Tensor | None) -> Picture:
    """The picture behind a packed sequence.

    packed: the numbers crop·side² + cell in the order of the sequence, `NEWLINE` for newlines.
    crops:  rows and columns of local crops; (0, 0) where there is only the whole image.
    states: crops×side²×d.
    """
    packed = packed.long().cpu()
    is_newline = packed == NEWLINE
    slots = (~is_newline).nonzero().flatten()
    numbers, order = packed[slots].sort()
    slots = slots[order]
    crop, cell = numbers // side**2, numbers % side**2
    row, column = cell // side, cell % side

    grids: list[Grid] = []
    boxes: list[Box] = []
    regions: list[Box] = []
    for number in crop.unique().tolist():
        here = crop == number
        grids.append((len(row[here].unique()), len(column[here].unique())))
        top, left, bottom, right = _box(row[here], column[here])
        regions.append((top / side, left / side, bottom / side, right / side))
        if number:
            above, before = ((number - 1) // crops[1]) * side, ((number - 1) % crops[1]) * side
            boxes.append((top + above, left + before, bottom + above, right + before))
    return Picture(
        grids,
        slots,
        len(packed),
        _ends(slots, crop, is_newline),
        layout=_shares(boxes) if boxes else None,
        states=states,
        arrange=lambda aligned: aligned.flatten(0, 1)[numbers.to(aligned.device)],
        crops=1 if states is None else len(states),
        shown=crop.unique().tolist(),
        regions=regions,
    )


def resampled(side: int, rows: int, columns: int, **where: Any) -> Picture:
    """The picture where the joined crops were scaled to rows×columns: they are one block then."""
    whole = torch.arange(side**2)
    slots, newlines = (side**2 + part for part in lined(rows, columns))
    return Picture(
        [(side, side), (rows, columns)],
        torch.cat([whole, slots]),
        side**2 + rows * (columns + 1),
        torch.cat([torch.full_like(whole, NEWLINE), newlines]),
        layout=[(0.0, 0.0, 1.0, 1.0)],
        **where,
    )


def mosaic(grid: Grid, crops: Grid) -> Tensor:
    """N, the rank of each token in the sequence: the whole image, then its crops joined, read row by row."""
    (rows, columns), (down, across) = grid, crops
    cells = torch.arange(down * across * rows * columns).view(down, rows, across, columns).transpose(1, 2)
    return torch.cat([torch.arange(rows * columns), rows * columns + cells.flatten()])


def lined(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Slots and newlines of rows that each end with a newline."""
    starts = torch.arange(rows)[:, None] * (columns + 1)
    return (starts + torch.arange(columns)).flatten(), (starts + columns).expand(-1, columns).flatten()


def _ends(slots: Tensor, crop: Tensor, is_newline: Tensor) -> Tensor:
    """The newline after each token's row. The whole image has one only where there are no crops: at its very end."""
    places = is_newline.nonzero().flatten()
    ends = torch.cat([places, torch.tensor([NEWLINE])])[torch.searchsorted(places, slots)]
    return ends if int(crop.max()) == 0 else ends.masked_fill(crop == 0, NEWLINE)


def _box(rows: Tensor, columns: Tensor) -> Box:
    return int(rows.min()), int(columns.min()), int(rows.max()) + 1, int(columns.max()) + 1


def _shares(boxes: list[Box]) -> list[Box]:
    """Boxes in cells of the joined crops as shares of what the unpadding left, which is the whole image."""
    top, left = min(box[0] for box in boxes), min(box[1] for box in boxes)
    height, width = max(box[2] for box in boxes) - top, max(box[3] for box in boxes) - left
    return [
        ((y0 - top) / height, (x0 - left) / width, (y1 - top) / height, (x1 - left) / width) for y0, x0, y1, x1 in boxes
    ]
