"""Text in pictures: any script that some font of the machine has; what none has is written as its code point."""

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
"""Where signs are looked for that the plain font has not: Chinese, Japanese, Korean, others, emoji in one colour."""


@cache
def fonts(size: int, bold: bool = False) -> tuple[Any, ...]:
    """The fonts of this machine in the order in which they are asked for a sign. Pillow's own is the last."""
    found = [font for name in (*(BOLD if bold else PLAIN), *OTHER_SCRIPTS) if (font := _font(name, size)) is not None]
    return (*found, ImageFont.load_default(size))


def _font(name: str, size: int) -> Any:
    for place in (_of_matplotlib(name), name):
        try:
            return ImageFont.truetype(place, size)
        except OSError:
            continue
    return None


@cache
def _of_matplotlib(name: str) -> str:
    """matplotlib brings DejaVu along."""
    spec = find_spec("matplotlib")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    return str(folder / "mpl-data" / "fonts" / "ttf" / name)


class Pen:
    """Writes on a picture in one size."""

    def __init__(self, draw: ImageDraw.ImageDraw, size: int, bold: bool = False) -> None:
        self.draw = draw
        self.size = size
        self.fonts = fonts(size, bold)

    def width(self, text: str) -> float:
        return sum(font.getlength(part) for font, part in _runs(text, self.fonts))

    def write(self, x: float, baseline: float, text: str, fill: Any = "black") -> float:
        """Returns where the text ends."""
        for font, part in _runs(text, self.fonts):
            self.draw.text((x, baseline), part, font=font, fill=fill, anchor="ls")
            x += font.getlength(part)
        return x

    def fitted(self, text: str, width: float) -> str:
        """The text, cut with an ellipsis where it is wider than this."""
        text = " ".join(text.split())
        if self.width(text) <= width:
            return text
        while text and self.width(text + "…") > width:
            text = text[:-1]
        return text + "…"

    def lines(self, text: str, width: float) -> list[str]:
        """The text in lines of at most this width; a word that is wider is cut."""
        lines, line = [], ""
        for word in text.split():
            longer = f"{line} {word}" if line else word
            if line and self.width(longer) > width:
                lines.append(line)
                longer = word
            line = self.fitted(longer, width)
        return [*lines, line] if line else lines


def _runs(text: str, fonts: tuple[Any, ...]) -> list[tuple[Any, str]]:
    """The text in pieces, each with the first font that has all its signs."""
    signs = [piece for sign in text if (piece := _drawable(sign, fonts))]
    return [(font, "".join(part for _, part in run)) for font, run in groupby(signs, key=lambda sign: sign[0])]


@cache
def _drawable(sign: str, fonts: tuple[Any, ...]) -> tuple[Any, str] | None:
    if sign in "\u200d\ufe0e\ufe0f" or not sign.isprintable():
        return (fonts[0], " ") if sign.isspace() else None
    for font in fonts:
        if has(font, sign):
            return font, sign
    return fonts[0], f"[U+{ord(sign):04X}]"


def has(font: Any, sign: str) -> bool:
    """Whether the font draws the sign, and not the box that stands for signs that it lacks."""
    return sign.isspace() or bytes(font.getmask(sign)) != _missing(font)


@cache
def _missing(font: Any) -> bytes:
    return bytes(font.getmask("\U0010fffd"))
