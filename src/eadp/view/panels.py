"""One panel of a figure: the image, a heatmap over it, or the kept tokens bright and the dropped tokens dark."""

from __future__ import annotations

from collections.abc import Callable

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from eadp.core import Grid
from eadp.utils.palette import normalize, to_colours
from eadp.view.block_layout import PlacedBlock, compute_block_layout
from eadp.view.comparison import Comparison, MethodResult
from eadp.view.text import TextWriter

GREY = (150, 150, 150)
"""Colour of a block whose part of the image is unknown."""

OUTLINE, MIN_OUTLINED_CELL = (254, 232, 56), 7
"""Colour of the outline of kept cells, and the size in pixels from which cells are outlined."""

DIMMED = 0.3
"""Brightness of dropped tokens."""


def draw_image_panel(comparison: Comparison, width: int) -> Image.Image:
    """Draw the image or the frames; crops as the model cuts them."""
    return _draw_panel(comparison, width, lambda placed, background: background)


def draw_heatmap_panel(comparison: Comparison, values: Tensor, width: int) -> Image.Image:
    """Draw one value per token, from dark (lowest) to light (highest).

    Args:
        comparison: The images and the grids of the tokens.
        values: N, one value per token.
        width: Width of the panel in pixels.
    """
    levels, blocks = normalize(values), comparison.blocks

    def paint(placed: PlacedBlock, background: Image.Image) -> Image.Image:
        cells = levels[blocks[placed.block]].view(comparison.grids[placed.block])
        return Image.fromarray(to_colours(cells).numpy()).resize(background.size, Image.Resampling.NEAREST)

    return _draw_panel(comparison, width, paint)


def draw_kept_panel(comparison: Comparison, result: MethodResult, width: int) -> Image.Image:
    """Draw the kept tokens bright and the others dark; below each frame or tile, how many of its tokens are kept."""
    mask, blocks = result.selection.mask.cpu(), comparison.blocks
    quotas = [int(mask[block].sum()) for block in blocks]

    def paint(placed: PlacedBlock, background: Image.Image) -> Image.Image:
        grid = comparison.grids[placed.block]
        return _highlight_kept(background, mask[blocks[placed.block]].view(grid), grid)

    return _draw_panel(comparison, width, paint, quotas)


def _draw_panel(
    comparison: Comparison,
    width: int,
    paint: Callable[[PlacedBlock, Image.Image], Image.Image],
    quotas: list[int] | None = None,
) -> Image.Image:
    """Draw every block with `paint`, and captions: the number of kept tokens if `quotas` are given."""
    layout = compute_block_layout(comparison, wide=comparison.is_clip)
    panel = Image.new("RGB", (width, round(layout.height * width)), "white")
    for placed in layout.blocks:
        left, top = round(placed.left * width), round(placed.top * width)
        size = (round((placed.left + placed.width) * width) - left, round((placed.top + placed.height) * width) - top)
        panel.paste(paint(placed, _cut_background(comparison, placed, size)), (left, top))
        if placed.caption:
            writer = TextWriter(ImageDraw.Draw(panel), max(9, min(26, round(0.16 * size[0]))))
            caption = placed.caption if quotas is None else f"{quotas[placed.block]} kept"
            if writer.width(caption) > size[0]:
                caption = placed.caption.split()[-1] if quotas is None else str(quotas[placed.block])
            x = left + (size[0] - writer.width(caption)) / 2
            writer.write(x, top + size[1] + 1.15 * writer.size, caption, "#333333")
    return panel


def _cut_background(comparison: Comparison, placed: PlacedBlock, size: tuple[int, int]) -> Image.Image:
    """Cut the part of the image that a block covers, and scale it to this size."""
    if placed.image is None:
        return Image.new("RGB", size, GREY)
    image = comparison.images[placed.image]
    top, left, bottom, right = placed.source
    box = (left * image.width, top * image.height, right * image.width, bottom * image.height)
    return image.resize(size, Image.Resampling.LANCZOS, box=box)


def _highlight_kept(background: Image.Image, mask: Tensor, grid: Grid) -> Image.Image:
    """Outline the kept cells, and make the others grey and dark, so that no information depends on hue."""
    kept = Image.fromarray((mask * 255).to(torch.uint8).numpy()).resize(background.size, Image.Resampling.NEAREST)
    dark = background.convert("L").point(lambda value: round(DIMMED * value)).convert("RGB")
    panel = Image.composite(background, dark, kept)
    cell_width, cell_height = background.width / grid[1], background.height / grid[0]
    if min(cell_width, cell_height) < MIN_OUTLINED_CELL:
        return panel
    draw = ImageDraw.Draw(panel)
    for row, column in mask.nonzero().tolist():
        corner = (round(column * cell_width), round(row * cell_height))
        end = (round((column + 1) * cell_width) - 1, round((row + 1) * cell_height) - 1)
        draw.rectangle((corner, end), outline=OUTLINE, width=2 if cell_width >= 20 else 1)
    return panel
