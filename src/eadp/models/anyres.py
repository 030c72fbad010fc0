"""Images cut into crops: the whole image first, then the crops, joined again with a newline after each row.

The models unpad the joined crops: they drop rows or columns that show no image. To find the crop and the cell of each
token, the geometry packs the numbers of the cells in place of features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eadp.compat import get_anyres_image_grid_shape, unpad_image
from eadp.core.types import Box, Grid
from eadp.models.geometry import FamilyGeometry
from eadp.models.layout import NO_NEWLINE, ImageLayout

NEWLINE = -1
"""In packed numbers of cells: a newline."""


class AnyresGeometry(FamilyGeometry):
    """What the families that cut images into crops share.

    Attributes:
        unpad: Whether the model drops the padding of the joined crops.
    """

    def __init__(self, config: Any, unpad: bool = True) -> None:
        super().__init__(config)
        self.unpad = unpad

    @property
    def side(self) -> int:
        """The side of the square grid of cells of a crop."""
        vision = self.config.vision_config
        return vision.image_size // vision.patch_size

    def crop_grid(self, size: list[int]) -> Grid:
        """Rows and columns of the local crops of an image with this height and width in pixels."""
        image_size = self.config.vision_config.image_size
        return get_anyres_image_grid_shape(size, self.config.image_grid_pinpoints, image_size)

    def join_local_crops(self, crops: Tensor, grid: Grid, size: list[int]) -> Tensor:
        """Join local crops to one map, without padding.

        Args:
            crops: crops×h×w×c.
            grid: Rows and columns of the crops.
            size: Height and width of the original image.

        Returns:
            c×height×width.
        """
        joined = crops.unflatten(0, grid).permute(4, 0, 2, 1, 3).contiguous().flatten(1, 2).flatten(2, 3)
        return unpad_image(joined, size) if self.unpad else joined

    def join_local_cells(self, cells: Tensor, grid: Grid, size: list[int]) -> Tensor:
        """Join the cells of local crops: crops×side²×c → c×height×width."""
        return self.join_local_crops(cells.unflatten(1, (self.side, self.side)), grid, size)

    def packed_numbers(self, grid: Grid, size: list[int]) -> Tensor:
        """The numbers crop·side² + cell in the order of the placeholders, with `NEWLINE` for newlines.

        Args:
            grid: Rows and columns of the local crops; (0, 0) where there is only the whole image.
            size: Height and width of the original image.
        """
        cells = self.side**2
        whole, newline = torch.arange(cells), torch.tensor([NEWLINE])
        count = grid[0] * grid[1]
        if not count:
            return torch.cat([whole, newline])
        local = cells + torch.arange(count * cells).view(count, cells, 1)
        joined = self.join_local_cells(local, grid, size)[0]
        return torch.cat([whole, torch.cat([joined, newline.expand(len(joined), 1)], dim=1).flatten()])


def packed_layout(packed: Tensor, side: int, crops: Grid) -> ImageLayout:
    """Read the layout of an image off its packed numbers.

    Args:
        packed: The numbers crop·side² + cell in the order of the placeholders, with `NEWLINE` for newlines.
        side: The side of the square grid of cells of a crop.
        crops: Rows and columns of the local crops; (0, 0) where there is only the whole image.
    """
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
        top, left, bottom, right = _bounds(row[here], column[here])
        regions.append((top / side, left / side, bottom / side, right / side))
        if number:
            above, before = ((number - 1) // crops[1]) * side, ((number - 1) % crops[1]) * side
            boxes.append((top + above, left + before, bottom + above, right + before))
    return ImageLayout(
        grids,
        slots,
        len(packed),
        _row_newlines(slots, crop, is_newline),
        layout=_as_shares(boxes) if boxes else None,
        crops=1 + crops[0] * crops[1],
        crop_of_block=crop.unique().tolist(),
        regions=regions,
        cells=numbers,
    )


def resampled_layout(side: int, rows: int, columns: int, **others: Any) -> ImageLayout:
    """The layout where the joined crops were scaled to rows×columns, so that they are one block.

    Args:
        side: The side of the grid of the whole image, which comes first.
        rows: Rows of the scaled crops.
        columns: Columns of the scaled crops.
        **others: Further fields of the layout.
    """
    whole = torch.arange(side**2)
    slots, newlines = (side**2 + part for part in rows_with_newlines(rows, columns))
    return ImageLayout(
        [(side, side), (rows, columns)],
        torch.cat([whole, slots]),
        side**2 + rows * (columns + 1),
        torch.cat([torch.full_like(whole, NO_NEWLINE), newlines]),
        layout=[(0.0, 0.0, 1.0, 1.0)],
        resampled=True,
        **others,
    )


def mosaic(grid: Grid, crops: Grid) -> Tensor:
    """N, the rank of each token in the sequence: the whole image, then its joined crops, read row by row."""
    (rows, columns), (down, across) = grid, crops
    cells = torch.arange(down * across * rows * columns).view(down, rows, across, columns).transpose(1, 2)
    return torch.cat([torch.arange(rows * columns), rows * columns + cells.flatten()])


def rows_with_newlines(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Slots and newlines, rows·columns each, of rows that each end with a newline."""
    starts = torch.arange(rows)[:, None] * (columns + 1)
    return (starts + torch.arange(columns)).flatten(), (starts + columns).expand(-1, columns).flatten()


def _row_newlines(slots: Tensor, crop: Tensor, is_newline: Tensor) -> Tensor:
    """The newline after each token's row. The whole image has one, at its very end, only where there are no crops."""
    newlines = is_newline.nonzero().flatten()
    ends = torch.cat([newlines, torch.tensor([NO_NEWLINE])])[torch.searchsorted(newlines, slots)]
    return ends if int(crop.max()) == 0 else ends.masked_fill(crop == 0, NO_NEWLINE)


def _bounds(rows: Tensor, columns: Tensor) -> Box:
    return int(rows.min()), int(columns.min()), int(rows.max()) + 1, int(columns.max()) + 1


def _as_shares(boxes: list[Box]) -> list[Box]:
    """Boxes in cells of the joined crops, as shares of the unpadded map, which is the whole image."""
    top, left = min(box[0] for box in boxes), min(box[1] for box in boxes)
    height, width = max(box[2] for box in boxes) - top, max(box[3] for box in boxes) - left
    return [
        ((y0 - top) / height, (x0 - left) / width, (y1 - top) / height, (x1 - left) / width) for y0, x0, y1, x1 in boxes
    ]
