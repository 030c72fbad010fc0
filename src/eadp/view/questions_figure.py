"""The figure of `eadp demo`: one image, and for several questions about it the words, the map and the kept tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image, ImageDraw

from eadp.utils.palette import normalize, text_colour, to_colours
from eadp.view.comparison import Comparison
from eadp.view.panels import draw_heatmap_panel, draw_image_panel, draw_kept_panel
from eadp.view.text import TextWriter

MARGIN, GAP = 24, 20
SIDE = 400
"""Width of a panel in pixels."""

CHIP_HEIGHT, CHIP_PITCH, LINE = 32, 38, 28
"""Height of a word's chip, distance of two rows of them, and distance of two lines of text."""

TEXT_COLOUR, MUTED_COLOUR = "#111111", "#444444"


@dataclass(frozen=True)
class AskedQuestion:
    """A question about the image, with what one method kept.

    Attributes:
        comparison: The question, its words and the result of the method.
        answer: The answer from the kept tokens.
    """

    comparison: Comparison
    answer: str


def draw_questions(asked: Sequence[AskedQuestion], columns: int = 3) -> Image.Image:
    """Draw the image first, then for each question its words, its answer, the relevance map and the kept tokens.

    Args:
        asked: The questions, all about the same image.
        columns: Panels side by side.
    """
    cells = [_draw_image(asked[0].comparison), *(_draw_question(each) for each in asked)]
    rows = [cells[first : first + columns] for first in range(0, len(cells), columns)]
    heights = [max(cell.height for cell in row) for row in rows]
    width = 2 * MARGIN + columns * (SIDE + GAP) - GAP
    page = Image.new("RGB", (width, 2 * MARGIN + sum(heights) + GAP * (len(rows) - 1)), "white")
    top = MARGIN
    for row, height in zip(rows, heights, strict=True):
        for column, cell in enumerate(row):
            page.paste(cell, (MARGIN + column * (SIDE + GAP), top))
        top += height + GAP
    return page


def _draw_image(comparison: Comparison) -> Image.Image:
    kept = comparison.results[0].selection
    lines = (
        f"{kept.total} visual tokens, {len(kept)} kept.",
        "Words: light ones point somewhere (low entropy),",
        "those struck through are not used.",
        "Above: what the words point at.",
        "Below: the tokens that the language model gets.",
    )
    panel = draw_image_panel(comparison, SIDE)
    cell = Image.new("RGB", (SIDE, panel.height + LINE * (len(lines) + 1)), "white")
    cell.paste(panel, (0, 0))
    writer = TextWriter(ImageDraw.Draw(cell), 16)
    for number, line in enumerate(lines, 1):
        writer.write(0, panel.height + number * LINE, line, MUTED_COLOUR)
    return cell


def _draw_question(asked: AskedQuestion) -> Image.Image:
    comparison = asked.comparison
    result = comparison.results[0]
    panels = [draw_kept_panel(comparison, result, SIDE)]
    if result.heatmap is not None:
        panels.insert(0, draw_heatmap_panel(comparison, result.heatmap, SIDE))
    height = sum(panel.height + GAP // 2 for panel in panels)
    scratch = Image.new("RGB", (SIDE, height + CHIP_PITCH * (len(comparison.question.split()) + 2)), "white")
    draw = ImageDraw.Draw(scratch)
    top = _draw_words(draw, comparison)
    TextWriter(draw, 20, bold=True).write(0, top + LINE, f"→ {asked.answer}", TEXT_COLOUR)
    top += LINE + GAP
    for panel in panels:
        scratch.paste(panel, (0, top))
        top += panel.height + GAP // 2
    return scratch.crop((0, 0, SIDE, top))


def _draw_words(draw: ImageDraw.ImageDraw, comparison: Comparison) -> int:
    """Draw the words of the question, or its plain text where the words are unknown; return the y below."""
    writer, top, left = TextWriter(draw, 18), 0, 0.0
    if not comparison.words:
        for line in writer.wrap(comparison.question, SIDE):
            top += LINE
            writer.write(0, top, line, TEXT_COLOUR)
        return top
    shades = to_colours(1 - normalize(torch.tensor([entropy for _, entropy, _ in comparison.words])))
    for (word, _, kept), shade in zip(comparison.words, shades, strict=True):
        label = writer.truncate(word, SIDE - 16)
        width = writer.width(label) + 14
        if left + width > SIDE:
            left, top = 0.0, top + CHIP_PITCH
        colour = text_colour(shade)
        draw.rounded_rectangle((left, top, left + width, top + CHIP_HEIGHT), 6, fill=tuple(shade.tolist()))
        writer.write(left + 7, top + 23, label, colour)
        if not kept:
            draw.line((left + 4, top + 17, left + width - 4, top + 17), fill=colour, width=2)
        left += width + 6
    return top + CHIP_PITCH
