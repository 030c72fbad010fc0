"""The figure of `eadp show`: the question's words, the picture, and each method's map and kept tokens side by side."""

from __future__ import annotations

import torch
from PIL import Image, ImageDraw

from eadp.utils.palette import normalize, text_colour, to_colours
from eadp.view.comparison import Comparison, MethodResult
from eadp.view.panels import heat_panel, kept_panel, picture_panel
from eadp.view.text import Pen

WIDTH = 1760
"""Pixels: twice a README's width, for sharp screens."""

MARGIN, GAP = 40, 32
WIDEST = 560
"""Pixels of one column."""

INK, QUIET = "#111111", "#444444"


def draw_figure(comparison: Comparison) -> Image.Image:
    """One column for the picture and one for each method: its map above, what it kept below. A clip's strips of frames
    are as wide as the figure, one below the other."""
    columns = 1 if comparison.is_clip else 1 + len(comparison.results)
    panel = (
        WIDTH - 2 * MARGIN
        if comparison.is_clip
        else max(200, min(WIDEST, (WIDTH - 2 * MARGIN - GAP * (columns - 1)) // columns))
    )
    width = max(2 * MARGIN + columns * (panel + GAP) - GAP, 2 * MARGIN + 3 * 320)
    scratch = Image.new("RGB", (width, 20_000), "white")
    pens = Pens(ImageDraw.Draw(scratch), panel)
    y = _question(comparison, pens, width) + 36
    bottoms = [_picture_column(comparison, scratch, pens, MARGIN, y, panel)]
    for number, (result, covered) in enumerate(zip(comparison.results, coverages(comparison), strict=True), start=1):
        left, top = (MARGIN, bottoms[-1] + 48) if comparison.is_clip else (MARGIN + number * (panel + GAP), y)
        bottoms.append(_method_column(comparison, result, covered, scratch, pens, left, top, panel))
    y = max(bottoms) + 16
    for note in comparison.notes:
        for line in pens.small.lines(note, width - 2 * MARGIN):
            y += 32
            pens.small.write(MARGIN, y, line, QUIET)
    return scratch.crop((0, 0, width, y + MARGIN))


def coverages(comparison: Comparison) -> list[float | None]:
    """What the method says itself, else F of its tokens by EADP's weights; None where those are not known."""
    return [
        replayed.coverage[-1].item()
        if result.selection.coverage is None and replayed is not None
        else result.selection.coverage
        for result, replayed in zip(comparison.results, comparison.replays, strict=True)
    ]


class Pens:
    """Headings, text and numbers, smaller where columns are narrow."""

    def __init__(self, canvas: ImageDraw.ImageDraw, panel: int) -> None:
        self.canvas = canvas
        self.word = Pen(canvas, 34)
        self.heading = Pen(canvas, 32 if panel >= 300 else 26, bold=True)
        self.text = Pen(canvas, 27 if panel >= 300 else 22)
        self.small = Pen(canvas, 24)


def _question(comparison: Comparison, pens: Pens, width: int) -> int:
    """The words as chips, light for low entropy, the discarded struck through. Returns where they end."""
    if not comparison.words:
        y = MARGIN
        for line in pens.word.lines(comparison.question, width - 2 * MARGIN):
            y += 44
            pens.word.write(MARGIN, y, line, INK)
        return y
    shades = to_colours(1 - normalize(torch.tensor([entropy for _, entropy, _ in comparison.words])))
    x, top = float(MARGIN), MARGIN
    for (word, entropy, kept), shade in zip(comparison.words, shades, strict=True):
        shown, number = pens.word.fitted(word, width / 2), f"{entropy:.2f}"
        room = max(pens.word.width(shown), pens.small.width(number)) + 24
        if x + room > width - MARGIN:
            x, top = float(MARGIN), top + 104
        ink, middle = text_colour(shade), x + room / 2
        pens.canvas.rounded_rectangle((x, top, x + room, top + 56), 10, fill=tuple(shade.tolist()))
        start = middle - pens.word.width(shown) / 2
        end = pens.word.write(start, top + 40, shown, ink)
        if not kept:
            pens.canvas.line((start - 5, top + 29, end + 5, top + 29), fill=ink, width=4)
        pens.small.write(middle - pens.small.width(number) / 2, top + 84, number, QUIET)
        x += room + 10
    legend = "entropy of each word: low ones point somewhere; struck through: not used"
    y = top + 84 + 36
    for line in pens.small.lines(legend, width - 2 * MARGIN):
        pens.small.write(MARGIN, y, line, QUIET)
        y += 32
    return y - 32


def _picture_column(comparison: Comparison, page: Image.Image, pens: Pens, left: int, y: int, panel: int) -> int:
    what = f"clip of {len(comparison.images)} frames" if comparison.is_clip else "image"
    y = _heading(pens, left, y, panel, what, f"{comparison.total} tokens")
    picture = picture_panel(comparison, panel)
    page.paste(picture, (left, y))
    y += picture.height + 14
    if comparison.whole is not None:
        y = _answer(pens, left, y, panel, comparison.whole.text)
    y += 28
    panel = min(panel, WIDEST)
    scale = to_colours(torch.linspace(0, 1, panel))[None].expand(22, -1, -1)
    page.paste(Image.fromarray(scale.contiguous().numpy()), (left, y))
    y += 22 + 30
    pens.small.write(left, y, "low", QUIET)
    pens.small.write(left + panel - pens.small.width("high"), y, "high", QUIET)
    middle = pens.small.fitted("relevance", panel - 120)
    pens.small.write(left + (panel - pens.small.width(middle)) / 2, y, middle, QUIET)
    for line in pens.small.lines("bright and edged: kept; grey and dark: dropped", panel):
        y += 32
        pens.small.write(left, y, line, QUIET)
    return y


def _method_column(
    comparison: Comparison,
    result: MethodResult,
    covered: float | None,
    page: Image.Image,
    pens: Pens,
    left: int,
    y: int,
    panel: int,
) -> int:
    told = f"{len(result.selection)} of {result.selection.total} tokens"
    y = _heading(pens, left, y, panel, result.name, told)
    heat, kept = result.heat, kept_panel(comparison, result, panel)
    if heat is None:
        above = Image.new("RGB", kept.size, "#eeeeee")
        pen = Pen(ImageDraw.Draw(above), pens.small.size)
        for number, line in enumerate(pen.lines("this method goes by no map", panel - 20)):
            pen.write((panel - pen.width(line)) / 2, above.height / 2 + 32 * number, line, QUIET)
    else:
        above = heat_panel(comparison, heat, panel)
    page.paste(above, (left, y))
    y += above.height + 14
    page.paste(kept, (left, y))
    y += kept.height + 14
    if result.answer is not None:
        y = _answer(pens, left, y, panel, result.answer.text)
    if covered is not None:
        y += 34
        pens.text.write(left, y, pens.text.fitted(f"coverage {covered:.1%}", panel), QUIET)
    return y


def _heading(pens: Pens, left: int, y: int, panel: int, name: str, told: str) -> int:
    pens.heading.write(left, y + 30, pens.heading.fitted(name, panel), INK)
    pens.text.write(left, y + 66, pens.text.fitted(told, panel), QUIET)
    return y + 84


def _answer(pens: Pens, left: int, y: int, panel: int, answer: str) -> int:
    for line in pens.text.lines(f"answer: {answer}", panel)[:4]:
        y += 34
        pens.text.write(left, y, line, INK)
    return y
