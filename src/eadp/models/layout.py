"""Where the tokens of an image are: on its grids, in the prompt, and among the cells of the vision tower. Only data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from eadp.core.types import Box, Grid, Layout

NO_NEWLINE = -1
"""In `ImageLayout.newlines`: no newline ends the row of this token."""


@dataclass(frozen=True)
class Pooling:
    """How a model pools the square grid of cells of each tower sequence into tokens.

    Attributes:
        mode: The operation. "conv" has weights, so only the model itself can run it.
        side: The side of the square of cells that becomes one token.
    """

    mode: Literal["average", "max", "bilinear", "conv"]
    side: int


@dataclass(frozen=True)
class ImageLayout:
    """Where the N tokens of one image (or clip) are. Tokens are listed block after block, each block row by row.

    A block is the whole image, a crop, or a frame. A tower sequence is one sequence of the vision tower, with one cell
    per patch.

    Attributes:
        grids: Rows and columns of each block, as in `VisualTokens`.
        slots: N, which of the image's placeholders each token fills, counted from 0.
        length: The number of placeholders of the image: its N tokens and its newlines.
        newlines: N, the slot of the newline that ends each token's row, or −1.
        layout: Where the local crops lie on the whole image, as in `VisualTokens`.
        crops: The number of tower sequences that the image takes.
        crop_of_block: The tower sequence that each block shows. None: block i shows sequence i.
        regions: The part of its tower sequence that each block shows. None: all of it.
        pooling: How cells are pooled into tokens. None: a token is one cell.
        cells: N, the pooled cell of each token, counted over all tower sequences. None: they are in the same order.
        image_size: Height and width of the original image in pixels, where the geometry depends on them.
        resampled: The local crops were joined and scaled to one block, so its tokens are not single cells.
        is_clip: The blocks are the frames of a clip.
    """

    grids: Sequence[Grid]
    slots: Tensor
    length: int
    newlines: Tensor
    layout: Layout | None = None
    crops: int = 1
    crop_of_block: Sequence[int] | None = None
    regions: Sequence[Box] | None = None
    pooling: Pooling | None = None
    cells: Tensor | None = None
    image_size: tuple[int, int] | None = None
    resampled: bool = False
    is_clip: bool = False

    @classmethod
    def contiguous(cls, grids: Sequence[Grid], **others: Any) -> ImageLayout:
        """Build the layout of an image whose tokens fill its placeholders in order, without newlines.

        Args:
            grids: Rows and columns of each block.
            **others: Further fields of the layout.
        """
        n = sum(rows * columns for rows, columns in grids)
        return cls(grids, torch.arange(n), n, torch.full((n,), NO_NEWLINE), **others)

    def __len__(self) -> int:
        return len(self.slots)

    @cached_property
    def newline_slots(self) -> Tensor:
        """The slots of the newlines, sorted."""
        return self.newlines[self.newlines >= 0].unique()

    def with_newlines_after_frames(self, slots: Tensor) -> Tensor:
        """Reorder slots such that the newlines of each frame follow its tokens.

        Args:
            slots: Slots of tokens and newlines, sorted.
        """
        first_of_frame = self.slots.view(len(self.grids), -1).amin(1)
        frame = torch.searchsorted(first_of_frame, slots, right=True) - 1
        is_newline = torch.isin(slots, self.newline_slots)
        return slots[(2 * frame + is_newline).sort(stable=True).indices]

    @property
    def block_crops(self) -> list[int]:
        """The tower sequence that each block shows."""
        return list(range(len(self.grids)) if self.crop_of_block is None else self.crop_of_block)

    def arrange(self, cells: Tensor) -> Tensor:
        """Arrange values of tower cells as the model arranges its features.

        Args:
            cells: crops×cells×c, without CLS.

        Returns:
            N×c, one row per token.
        """
        if self.pooling is not None:
            cells = pool_cells(cells, self.pooling)
        rows = cells.flatten(0, 1)
        return rows if self.cells is None else rows[self.cells.to(rows.device)]


@dataclass(frozen=True)
class Placeholders:
    """Where the placeholders of one modality are in a batch of prompts.

    Attributes:
        ids: B×L token ids; None for prompts given as embeddings.
        columns: For each prompt, the columns of its placeholders.
    """

    ids: Tensor | None
    columns: Sequence[Tensor]

    def runs(self, row: int) -> list[Tensor]:
        """Split the placeholders of one prompt where other tokens come between them."""
        columns = self.columns[row]
        if not len(columns):
            return []
        breaks = (columns.diff() != 1).nonzero().flatten() + 1
        return list(columns.tensor_split(breaks))


def pool_cells(cells: Tensor, pooling: Pooling) -> Tensor:
    """Pool square grids of cells: crops×cells×c → crops×tokens×c."""
    grid = cells.unflatten(1, square_grid(cells.shape[1], "the vision tower")).permute(0, 3, 1, 2)
    if pooling.mode == "average":
        pooled = F.avg_pool2d(grid, pooling.side)
    elif pooling.mode == "max":
        pooled = F.max_pool2d(grid, pooling.side)
    elif pooling.mode == "bilinear":
        size = [math.ceil(side / pooling.side) for side in grid.shape[2:]]
        pooled = F.interpolate(grid.contiguous(), size=size, mode="bilinear")
    else:
        raise ValueError("this model pools by a convolution, which cannot be applied to anything but its own states")
    return pooled.flatten(2).mT


def pooled_size(cells: int, pooling: Pooling | None) -> int:
    """The number of tokens that a tower sequence of so many cells becomes."""
    if pooling is None:
        return cells
    side, _ = square_grid(cells, "the vision tower")
    return (math.ceil(side / pooling.side) if pooling.mode == "bilinear" else side // pooling.side) ** 2


def join_layouts(layouts: Sequence[ImageLayout], cells: int) -> ImageLayout | None:
    """The layout of several images as if they were one, by which the cells of all of them are arranged at once.

    Args:
        layouts: The layouts of the images.
        cells: The number of cells of a tower sequence.

    Returns:
        The layout. None where one was resampled, or where they are pooled differently.
    """
    pooling = layouts[0].pooling
    if any(layout.resampled or layout.pooling != pooling for layout in layouts):
        return None
    numbers = None
    if any(layout.cells is not None for layout in layouts):
        size, start, parts = pooled_size(cells, pooling), 0, []
        for layout in layouts:
            own = torch.arange(layout.crops * size) if layout.cells is None else layout.cells
            parts.append(own + start)
            start += layout.crops * size
        numbers = torch.cat(parts)
    grids = [grid for layout in layouts for grid in layout.grids]
    crops = sum(layout.crops for layout in layouts)
    return ImageLayout.contiguous(grids, crops=crops, pooling=pooling, cells=numbers)


def square_grid(cells: int, owner: str) -> Grid:
    """Rows and columns of a square grid with this many cells. `owner` names it in the error."""
    side = round(cells**0.5)
    if side * side != cells:
        raise ValueError(f"{owner} has {cells} tokens, which is not a square number, and the family gives no grid")
    return side, side
