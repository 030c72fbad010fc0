"""Text in images, in any script that a font of this machine supports.

A character that no font supports is written as its code point.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import ImageDraw, ImageFont

PLAIN = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "Arial.ttf",
    "arial.ttf",
    "Helvetica.ttc",
    "LiberationSans-Regular.ttf",
)
BOLD = ("DejaVuSans-Bold.ttf", "NotoSans-Bold.ttf", "Arial Bold.ttf", "arialbd.ttf", "LiberationSans-Bold.ttf")
OTHER_SCRIPTS = (
    "NotoSansCJK-Regular.ttc",
    "wqy-microhei.ttc",
    "wqy-zenhei.ttc",
    "DroidSansFallbackFull.ttf",
    "msyh.ttc",
    "PingFang.ttc",
    "Hiragino Sans GB.ttc",
    "Arial Unicode.ttf",
    "NotoSansArabic-Regular.ttf",
    "NotoSansDevanagari-Regular.ttf",
    "NotoEmoji-Regular.ttf",
    "Symbola.ttf",
    "Symbola_hint.ttf",
    "seguiemj.ttf",
    "FreeSans.ttf",
)
"""Fonts for characters that the plain font lacks: Chinese, Japanese, Korean, other scripts, single-colour emoji."""


@cache
def load_fonts(size: int, bold: bool = False) -> tuple[Any, ...]:
    """Load the known fonts of this machine, in the order in which they are searched; Pillow's own font is the last."""
    found = [
        font for name in (*(BOLD if bold else PLAIN), *OTHER_SCRIPTS) if (font := _load_font(name, size)) is not None
    ]
    return (*found, ImageFont.load_default(size))


def _load_font(name: str, size: int) -> Any:
    for path in (_matplotlib_path(name), name):
        try:
            return ImageFont.truetype(path, size)
        except OSError:
            continue
    return None


@cache
def _matplotlib_path(name: str) -> str:
    """Path that the font has if matplotlib, which ships DejaVu, is installed."""
    spec = find_spec("matplotlib")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    return str(folder / "mpl-data" / "fonts" / "ttf" / name)


class TextWriter:
    """Writes text of one size on an image."""

    def __init__(self, draw: ImageDraw.ImageDraw, size: int, bold: bool = False) -> None:
        self.draw = draw
        self.size = size
        self.fonts = load_fonts(size, bold)

    def width(self, text: str) -> float:
        """Return the width of the text in pixels."""
        return sum(font.getlength(part) for font, part in _split_by_font(text, self.fonts))

    def write(self, x: float, baseline: float, text: str, fill: Any = "black") -> float:
        """Write a line of text.

        Returns:
            The x coordinate of the end of the text.
        """
        for font, part in _split_by_font(text, self.fonts):
            self.draw.text((x, baseline), part, font=font, fill=fill, anchor="ls")
            x += font.getlength(part)
        return x

    def truncate(self, text: str, width: float) -> str:
        """Shorten the text to this width, with an ellipsis if anything is cut off."""
        text = " ".join(text.split())
        if self.width(text) <= width:
            return text
        while text and self.width(text + "…") > width:
            text = text[:-1]
        return text + "…"

    def wrap(self, text: str, width: float) -> list[str]:
        """Break the text into lines of at most this width; a single word that is wider is truncated."""
        lines, line = [], ""
        for word in text.split():
            longer = f"{line} {word}" if line else word
            if line and self.width(longer) > width:
                lines.append(line)
                longer = word
            line = self.truncate(longer, width)
        return [*lines, line] if line else lines


def _split_by_font(text: str, fonts: tuple[Any, ...]) -> list[tuple[Any, str]]:
    """Split the text into runs, each with the first font that has all its characters."""
    pieces = [piece for character in text if (piece := _drawable(character, fonts))]
    return [(font, "".join(part for _, part in run)) for font, run in groupby(pieces, key=lambda piece: piece[0])]


@cache
def _drawable(character: str, fonts: tuple[Any, ...]) -> tuple[Any, str] | None:
    """Return a font and the text it draws for this character; None for joiners, variation selectors and controls."""
    if character in "\u200d\ufe0e\ufe0f" or not character.isprintable():
        return (fonts[0], " ") if character.isspace() else None
    for font in fonts:
        if has_glyph(font, character):
            return font, character
    return fonts[0], f"[U+{ord(character):04X}]"


def has_glyph(font: Any, character: str) -> bool:
    """Return whether the font has this character, rather than the box that stands for missing ones."""
    return character.isspace() or bytes(font.getmask(character)) != _missing_glyph(font)


@cache
def _missing_glyph(font: Any) -> bytes:
    return bytes(font.getmask("\U0010fffd"))
