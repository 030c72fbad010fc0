"""One panel: the picture, a map over it, or the kept tokens lit and the dropped ones dimmed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from eadp.core import Grid
from eadp.utils.palette import normalize, to_colours
from eadp.view.comparison import Comparison, MethodResult
from eadp.view.sheet import Place, lay_out
from eadp.view.text import Pen

GREY = (150, 150, 150)
"""What stands for a part of the picture that the model does not place."""

EDGE, SMALLEST = (254, 232, 56), 7
"""The edge around kept cells, and the pixels that a cell needs to have one."""

DIMMED = 0.3


def picture_panel(comparison: Comparison, width: int) -> Image.Image:
    """The picture alone; crops as they were cut."""
    return _panel(comparison, width, lambda place, under: under)


def heat_panel(comparison: Comparison, values: Tensor, width: int) -> Image.Image:
    """values: N."""
    levels, blocks = normalize(values), comparison.blocks

    def paint(place: Place, under: Image.Image) -> Image.Image:
        cells = levels[blocks[place.block]].view(comparison.grids[place.block])
        return Image.fromarray(to_colours(cells).numpy()).resize(under.size, Image.Resampling.NEAREST)

    return _panel(comparison, width, paint)


def kept_panel(comparison: Comparison, result: MethodResult, width: int) -> Image.Image:
    """Frames and tiles say below how many tokens they kept."""
    mask, blocks = result.selection.mask.cpu(), comparison.blocks
    quotas = [int(mask[block].sum()) for block in blocks]

    def paint(place: Place, under: Image.Image) -> Image.Image:
        grid = comparison.grids[place.block]
        return _lit(under, mask[blocks[place.block]].view(grid), grid)

    return _panel(comparison, width, paint, quotas)


def _panel(
    comparison: Comparison,
    width: int,
    paint: Callable[[Place, Image.Image], Image.Image],
    quotas: list[int] | None = None,
) -> Image.Image:
    sheet = lay_out(comparison, wide=comparison.is_clip)
    panel = Image.new("RGB", (width, round(sheet.height * width)), "white")
    for place in sheet.places:
        left, top = round(place.left * width), round(place.top * width)
        size = (round((place.left + place.width) * width) - left, round((place.top + place.height) * width) - top)
        panel.paste(paint(place, _under(comparison, place, size)), (left, top))
        if place.caption:
            pen = Pen(ImageDraw.Draw(panel), max(9, min(26, round(0.16 * size[0]))))
            shown = place.caption if quotas is None else f"{quotas[place.block]} kept"
            if pen.width(shown) > size[0]:
                shown = place.caption.split()[-1] if quotas is None else str(quotas[place.block])
            pen.write(left + (size[0] - pen.width(shown)) / 2, top + size[1] + 1.15 * pen.size, shown, "#333333")
    return panel


def _under(comparison: Comparison, place: Place, size: tuple[int, int]) -> Image.Image:
    if place.image is None:
        return Image.new("RGB", size, GREY)
    image = comparison.images[place.image]
    top, left, bottom, right = place.source
    box = (left * image.width, top * image.height, right * image.width, bottom * image.height)
    return image.resize(size, Image.Resampling.LANCZOS, box=box)


def _lit(under: Image.Image, mask: Tensor, grid: Grid) -> Image.Image:
    """Kept cells as they are with an edge around them, the others grey and dark: no hue has to be told apart."""
    lit = Image.fromarray((mask * 255).to(torch.uint8).numpy()).resize(under.size, Image.Resampling.NEAREST)
    dark = under.convert("L").point(lambda value: round(DIMMED * value)).convert("RGB")
    panel = Image.composite(under, dark, lit)
    across, down = under.width / grid[1], under.height / grid[0]
    if min(across, down) < SMALLEST:
        return panel
    draw = ImageDraw.Draw(panel)
    for row, column in mask.nonzero().tolist():
        corner = (round(column * across), round(row * down))
        end = (round((column + 1) * across) - 1, round((row + 1) * down) - 1)
        draw.rectangle((corner, end), outline=EDGE, width=2 if across >= 20 else 1)
    return panel
