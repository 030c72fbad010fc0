"""Where each block of tokens is drawn: a picture, the crops of one at their places, the frames of a clip in a strip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eadp.core import Box
from eadp.core.quotas import crop_boxes
from eadp.view.comparison import Comparison

WHOLE: Box = (0.0, 0.0, 1.0, 1.0)
CAPTION = 0.26
"""Room for a caption below a frame, as a share of the frame's width."""

BETWEEN = 0.06
"""Room between two frames, as a share of the frame's width."""

GAP = 0.02
"""Room between a picture and its crops, as a share of the sheet's width."""

TALLEST = 1.4
"""Height of a picture over its width; a taller one is drawn narrower."""


@dataclass(frozen=True)
class Place:
    """Where a block of tokens is drawn, in shares of the sheet's width, and which part of which picture lies under it.

    image: its number; None where the model does not say which part of the picture the block shows.
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
class Sheet:
    """height: over a width of 1."""

    places: tuple[Place, ...]
    height: float


def lay_out(comparison: Comparison, wide: bool = False) -> Sheet:
    """wide: there is room for many frames beside each other."""
    grids, images = comparison.grids, comparison.images
    if len(images) > 1 and len(images) != len(grids):
        raise ValueError(f"{len(images)} frames were given, but the tokens lie on {len(grids)} blocks")
    if len(images) == len(grids) > 1:
        return _strip(range(len(grids)), [image.height / image.width for image in images], "frame", wide)
    whole = _whole(images[0].height / images[0].width)
    if len(grids) == 1:
        return Sheet((whole,), whole.height)
    below = whole.height + 2 * GAP
    if comparison.layout is None:
        tiles = _strip(
            range(1, len(grids)), [rows / columns for rows, columns in grids[1:]], "tile", wide, images=False
        )
    else:
        tiles = _crops(crop_boxes(comparison.layout, len(grids) - 1), whole)
    moved = (replace(each, top=each.top + below) for each in tiles.places)
    return Sheet((whole, *moved), below + tiles.height)


def _whole(aspect: float) -> Place:
    width = min(1.0, TALLEST / aspect)
    return Place(0, 0, WHOLE, (1 - width) / 2, 0.0, width, width * aspect)


def _crops(boxes: Sequence[Box], whole: Place) -> Sheet:
    """The crops beside each other as they lie on the picture, with seams between them."""
    seam = GAP / 2
    places = []
    for number, (top, left, bottom, right) in enumerate(boxes, start=1):
        x, y = whole.left + left * whole.width, top * whole.height
        width, height = (right - left) * whole.width - seam, (bottom - top) * whole.height - seam
        places.append(Place(number, 0, (top, left, bottom, right), x + seam / 2, y + seam / 2, width, height))
    return Sheet(tuple(places), whole.height)


def _strip(blocks: range, aspects: list[float], what: str, wide: bool, images: bool = True) -> Sheet:
    few, many = (8, 16) if wide else (4, 8)
    columns = min(len(blocks), few if len(blocks) <= 2 * few else many)
    width = 1 / (columns + BETWEEN * (columns - 1))
    places, top = [], 0.0
    for start in range(0, len(blocks), columns):
        row = range(start, min(start + columns, len(blocks)))
        for number in row:
            left = (number - start) * width * (1 + BETWEEN)
            image = blocks[number] if images else None
            height = width * aspects[number]
            places.append(Place(blocks[number], image, WHOLE, left, top, width, height, f"{what} {number + 1}"))
        top += width * max(aspects[number] for number in row) + CAPTION * width
    return Sheet(tuple(places), top)
