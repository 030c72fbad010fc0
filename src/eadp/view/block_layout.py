"""Where each block of tokens is drawn: the whole image, its crops at their positions, or the frames of a clip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eadp.core import Box
from eadp.core.quotas import crop_boxes
from eadp.view.comparison import Comparison

WHOLE_IMAGE: Box = (0.0, 0.0, 1.0, 1.0)
CAPTION_HEIGHT = 0.26
"""Height of the caption below a frame, as a share of the frame's width."""

FRAME_GAP = 0.06
"""Gap between two frames, as a share of the frame's width."""

CROP_GAP = 0.02
"""Gap between the image and its crops, as a share of the total width."""

MAX_ASPECT = 1.4
"""Largest height of an image relative to its width. A taller image is drawn narrower."""


@dataclass(frozen=True)
class PlacedBlock:
    """One block of tokens, and the part of an image that it covers.

    Lengths are relative to the total width of the layout.

    Attributes:
        block: Index of the block.
        image: Index of the image; None if the model does not say which part of the image the block shows.
        source: The part of the image that the block covers, relative to the image: top, left, bottom, right.
        left: Distance from the left edge.
        top: Distance from the top edge.
        width: Width of the block.
        height: Height of the block.
        caption: Text below the block.
    """

    block: int
    image: int | None
    source: Box
    left: float
    top: float
    width: float
    height: float
    caption: str = ""


@dataclass(frozen=True)
class BlockLayout:
    """The positions of all blocks.

    Attributes:
        blocks: The blocks in the order of their indices.
        height: Total height relative to the total width.
    """

    blocks: tuple[PlacedBlock, ...]
    height: float


def compute_block_layout(comparison: Comparison, wide: bool = False) -> BlockLayout:
    """Compute where each block of tokens is drawn.

    Args:
        comparison: The comparison that is drawn.
        wide: Whether there is room for twice as many frames per row.

    Raises:
        ValueError: If there are several images, but not one per block.
    """
    grids, images = comparison.grids, comparison.images
    if len(images) > 1 and len(images) != len(grids):
        raise ValueError(
            f"{len(images)} frames were given, but the tokens lie on {len(grids)} blocks: give one frame per block"
        )
    if len(images) == len(grids) > 1:
        return _place_in_rows(range(len(grids)), [image.height / image.width for image in images], "frame", wide)
    whole = _place_whole_image(images[0].height / images[0].width)
    if len(grids) == 1:
        return BlockLayout((whole,), whole.height)
    crops_top = whole.height + 2 * CROP_GAP
    if comparison.layout is None:
        aspects = [rows / columns for rows, columns in grids[1:]]
        crops = _place_in_rows(range(1, len(grids)), aspects, "tile", wide, has_images=False)
    else:
        crops = _place_crops(crop_boxes(comparison.layout, len(grids) - 1), whole)
    moved = (replace(crop, top=crop.top + crops_top) for crop in crops.blocks)
    return BlockLayout((whole, *moved), crops_top + crops.height)


def _place_whole_image(aspect: float) -> PlacedBlock:
    width = min(1.0, MAX_ASPECT / aspect)
    return PlacedBlock(0, 0, WHOLE_IMAGE, (1 - width) / 2, 0.0, width, width * aspect)


def _place_crops(boxes: Sequence[Box], whole: PlacedBlock) -> BlockLayout:
    """Place the crops next to each other as they lie on the image, with seams between them."""
    seam = CROP_GAP / 2
    blocks = []
    for number, (top, left, bottom, right) in enumerate(boxes, start=1):
        x, y = whole.left + left * whole.width, top * whole.height
        width, height = (right - left) * whole.width - seam, (bottom - top) * whole.height - seam
        blocks.append(PlacedBlock(number, 0, (top, left, bottom, right), x + seam / 2, y + seam / 2, width, height))
    return BlockLayout(tuple(blocks), whole.height)


def _place_in_rows(blocks: range, aspects: list[float], label: str, wide: bool, has_images: bool = True) -> BlockLayout:
    """Place blocks in rows of equal width, each with a numbered caption."""
    few, many = (8, 16) if wide else (4, 8)
    columns = min(len(blocks), few if len(blocks) <= 2 * few else many)
    width = 1 / (columns + FRAME_GAP * (columns - 1))
    placed, top = [], 0.0
    for start in range(0, len(blocks), columns):
        row = range(start, min(start + columns, len(blocks)))
        for number in row:
            left = (number - start) * width * (1 + FRAME_GAP)
            image = blocks[number] if has_images else None
            height = width * aspects[number]
            caption = f"{label} {number + 1}"
            placed.append(PlacedBlock(blocks[number], image, WHOLE_IMAGE, left, top, width, height, caption))
        top += width * max(aspects[number] for number in row) + CAPTION_HEIGHT * width
    return BlockLayout(tuple(placed), top)
