"""The figure of `eadp show`: the words of the question, the image, and the map and kept tokens of each method."""

from __future__ import annotations

import torch
from PIL import Image, ImageDraw

from eadp.utils.palette import normalize, text_colour, to_colours
from eadp.view.comparison import Comparison, MethodResult
from eadp.view.panels import draw_heatmap_panel, draw_image_panel, draw_kept_panel
from eadp.view.text import TextWriter

WIDTH = 1760
"""Width of the figure in pixels: twice the width of a README, for high-resolution screens."""

MARGIN, GAP = 40, 32
MAX_COLUMN_WIDTH = 560
MAX_HEIGHT = 20_000

TEXT_COLOUR, MUTED_COLOUR = "#111111", "#444444"


class TextStyles:
    """Text writers for words, headings, body text and small text; smaller if columns are narrow."""

    def __init__(self, draw: ImageDraw.ImageDraw, column_width: int) -> None:
        self.draw = draw
        self.word = TextWriter(draw, 34)
        self.heading = TextWriter(draw, 32 if column_width >= 300 else 26, bold=True)
        self.text = TextWriter(draw, 27 if column_width >= 300 else 22)
        self.small = TextWriter(draw, 24)


def draw_figure(comparison: Comparison) -> Image.Image:
    """Draw a comparison as one figure.

    The first column shows the image. Each method has a column with its map above and its kept tokens below. For a
    clip, the columns are as wide as the figure and follow one below the other.

    Args:
        comparison: What is drawn.

    Returns:
        The figure.

    Raises:
        ValueError: If there are several images, but not one per block of tokens.
    """
    columns = 1 if comparison.is_clip else 1 + len(comparison.results)
    column_width = (
        WIDTH - 2 * MARGIN
        if comparison.is_clip
        else max(200, min(MAX_COLUMN_WIDTH, (WIDTH - 2 * MARGIN - GAP * (columns - 1)) // columns))
    )
    width = max(2 * MARGIN + columns * (column_width + GAP) - GAP, 2 * MARGIN + 3 * 320)
    page = Image.new("RGB", (width, MAX_HEIGHT), "white")
    styles = TextStyles(ImageDraw.Draw(page), column_width)
    y = _draw_question(comparison, styles, width) + 36
    bottoms = [_draw_image_column(comparison, page, styles, MARGIN, y, column_width)]
    for number, (result, coverage) in enumerate(zip(comparison.results, coverages(comparison), strict=True), start=1):
        left, top = (MARGIN, bottoms[-1] + 48) if comparison.is_clip else (MARGIN + number * (column_width + GAP), y)
        bottoms.append(_draw_method_column(comparison, result, coverage, page, styles, left, top, column_width))
    y = max(bottoms) + 16
    for note in comparison.notes:
        for line in styles.small.wrap(note, width - 2 * MARGIN):
            y += 32
            styles.small.write(MARGIN, y, line, MUTED_COLOUR)
    return page.crop((0, 0, width, y + MARGIN))


def coverages(comparison: Comparison) -> list[float | None]:
    """Return the coverage of each method.

    It is the coverage that the method reports, or else that of its kept tokens with EADP's weights; None if these
    weights are unknown.
    """
    return [
        replay.coverage[-1].item()
        if result.selection.coverage is None and replay is not None
        else result.selection.coverage
        for result, replay in zip(comparison.results, comparison.replays, strict=True)
    ]


# Each of the functions below returns the y coordinate of the end of what it drew.


def _draw_question(comparison: Comparison, styles: TextStyles, width: int) -> int:
    """Draw the words as coloured chips, light for low entropy, discarded words struck through."""
    if not comparison.words:
        y = MARGIN
        for line in styles.word.wrap(comparison.question, width - 2 * MARGIN):
            y += 44
            styles.word.write(MARGIN, y, line, TEXT_COLOUR)
        return y
    shades = to_colours(1 - normalize(torch.tensor([entropy for _, entropy, _ in comparison.words])))
    x, top = float(MARGIN), MARGIN
    for (word, entropy, kept), shade in zip(comparison.words, shades, strict=True):
        label, number = styles.word.truncate(word, width / 2), f"{entropy:.2f}"
        chip_width = max(styles.word.width(label), styles.small.width(number)) + 24
        if x + chip_width > width - MARGIN:
            x, top = float(MARGIN), top + 104
        colour, middle = text_colour(shade), x + chip_width / 2
        styles.draw.rounded_rectangle((x, top, x + chip_width, top + 56), 10, fill=tuple(shade.tolist()))
        start = middle - styles.word.width(label) / 2
        end = styles.word.write(start, top + 40, label, colour)
        if not kept:
            styles.draw.line((start - 5, top + 29, end + 5, top + 29), fill=colour, width=4)
        styles.small.write(middle - styles.small.width(number) / 2, top + 84, number, MUTED_COLOUR)
        x += chip_width + 10
    legend = "entropy of each word: low ones point somewhere; struck through: not used"
    y = top + 84 + 36
    for line in styles.small.wrap(legend, width - 2 * MARGIN):
        styles.small.write(MARGIN, y, line, MUTED_COLOUR)
        y += 32
    return y - 32


def _draw_image_column(
    comparison: Comparison, page: Image.Image, styles: TextStyles, left: int, y: int, width: int
) -> int:
    """Draw the image with the answer from all tokens, and the colour scale."""
    title = f"clip of {len(comparison.images)} frames" if comparison.is_clip else "image"
    y = _draw_heading(styles, left, y, width, title, f"{comparison.total} tokens")
    panel = draw_image_panel(comparison, width)
    page.paste(panel, (left, y))
    y += panel.height + 14
    if comparison.unpruned is not None:
        y = _draw_answer(styles, left, y, width, comparison.unpruned.text)
    y += 28
    width = min(width, MAX_COLUMN_WIDTH)
    scale = to_colours(torch.linspace(0, 1, width))[None].expand(22, -1, -1)
    page.paste(Image.fromarray(scale.contiguous().numpy()), (left, y))
    y += 22 + 30
    styles.small.write(left, y, "low", MUTED_COLOUR)
    styles.small.write(left + width - styles.small.width("high"), y, "high", MUTED_COLOUR)
    label = styles.small.truncate("relevance", width - 120)
    styles.small.write(left + (width - styles.small.width(label)) / 2, y, label, MUTED_COLOUR)
    for line in styles.small.wrap("bright and edged: kept; grey and dark: dropped", width):
        y += 32
        styles.small.write(left, y, line, MUTED_COLOUR)
    return y


def _draw_method_column(
    comparison: Comparison,
    result: MethodResult,
    coverage: float | None,
    page: Image.Image,
    styles: TextStyles,
    left: int,
    y: int,
    width: int,
) -> int:
    """Draw the map of a method, its kept tokens, its answer and its coverage."""
    subtitle = f"{len(result.selection)} of {result.selection.total} tokens"
    if result.selection.newlines:
        subtitle += f", {result.selection.tokens_sent} sent"
    y = _draw_heading(styles, left, y, width, result.name, subtitle)
    heatmap, kept_panel = result.heatmap, draw_kept_panel(comparison, result, width)
    if heatmap is None:
        map_panel = Image.new("RGB", kept_panel.size, "#eeeeee")
        writer = TextWriter(ImageDraw.Draw(map_panel), styles.small.size)
        for number, line in enumerate(writer.wrap("this method uses no map", width - 20)):
            writer.write((width - writer.width(line)) / 2, map_panel.height / 2 + 32 * number, line, MUTED_COLOUR)
    else:
        map_panel = draw_heatmap_panel(comparison, heatmap, width)
    page.paste(map_panel, (left, y))
    y += map_panel.height + 14
    page.paste(kept_panel, (left, y))
    y += kept_panel.height + 14
    if result.answer is not None:
        y = _draw_answer(styles, left, y, width, result.answer.text)
    if coverage is not None:
        y += 34
        styles.text.write(left, y, styles.text.truncate(f"coverage {coverage:.1%}", width), MUTED_COLOUR)
    return y


def _draw_heading(styles: TextStyles, left: int, y: int, width: int, title: str, subtitle: str) -> int:
    styles.heading.write(left, y + 30, styles.heading.truncate(title, width), TEXT_COLOUR)
    styles.text.write(left, y + 66, styles.text.truncate(subtitle, width), MUTED_COLOUR)
    return y + 84


def _draw_answer(styles: TextStyles, left: int, y: int, width: int, answer: str) -> int:
    for line in styles.text.wrap(f"answer: {answer}", width)[:4]:
        y += 34
        styles.text.write(left, y, line, TEXT_COLOUR)
    return y
