"""The atlas: pictures of everyday things in several styles, and letters for signs. LICENCES.md names the sources."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

FOLDER = Path(__file__).parent
STYLES = ("noto", "twemoji", "fluent", "flat")
HANDS = (("noto",), ("twemoji",), ("fluent", "flat"))
"""The styles by who drew them: the two Fluent styles show the same drawings."""

CELL = 64
"""Pixels along each side of a cell of a sheet. A cell holds one thing, cropped to what is not transparent."""

COLUMNS = 17
"""Cells in a row of a sheet."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
LETTER_HEIGHT = 40
"""Height in pixels of a row of letters.png; there is one row per font."""

HELD_OUT_EVERY = 5
"""Every fifth thing has a hand that training never shows."""


@dataclass(frozen=True)
class Kind:
    """A kind of thing.

    Attributes:
        name: One or two words.
        category: What it is: animal, fruit, tool, …
        colour: Its mean colour over all styles, RGB.
        held_out: The styles in which training never shows it, those of one hand; empty for most things.
    """

    name: str
    category: str
    colour: tuple[int, int, int]
    held_out: tuple[str, ...]

    @property
    def styles(self) -> tuple[str, ...]:
        """The styles that training shows."""
        return tuple(style for style in STYLES if style not in self.held_out)


@cache
def kinds() -> tuple[Kind, ...]:
    """Return all kinds of things, in the order of the atlas."""
    made = []
    for number, entry in enumerate(_index()["things"]):
        turn, rest = divmod(number, HELD_OUT_EVERY)
        held_out = HANDS[turn % len(HANDS)] if rest == HELD_OUT_EVERY - 1 else ()
        made.append(Kind(entry["name"], entry["category"], tuple(entry["colour"]), held_out))
    return tuple(made)


@cache
def picture(kind: int, style: str) -> Image.Image:
    """Return the picture of a kind of thing in a style, as small as its outline allows, with premultiplied alpha."""
    top, left = kind // COLUMNS * CELL, kind % COLUMNS * CELL
    cell = _sheet(style).crop((left, top, left + CELL, top + CELL))
    return cell.crop(cell.getchannel("A").getbbox()).convert("RGBa")


@cache
def writing(text: str, font: int) -> Image.Image:
    """Write a text in capital letters and digits: an image of ink in [0, 255], LETTER_HEIGHT high.

    Raises:
        ValueError: If there is no such letter or font.
    """
    if unknown := sorted(set(text) - set(LETTERS) - {" "}):
        raise ValueError(f"signs have capital letters and digits only, got {''.join(unknown)!r}")
    if not 0 <= font < font_count():
        raise ValueError(f"fonts are numbered from 0 to {font_count() - 1}, got {font}")
    return Image.fromarray(np.concatenate([_letter(letter, font) for letter in text], 1))


def font_count() -> int:
    """Return the number of fonts of signs."""
    return len(_index()["letter_widths"])


def _letter(letter: str, font: int) -> NDArray[np.uint8]:
    widths = _index()["letter_widths"][font]
    if letter == " ":
        return np.zeros((LETTER_HEIGHT, LETTER_HEIGHT // 3), np.uint8)
    number = LETTERS.index(letter)
    left = sum(widths[:number])
    return _letters()[font * LETTER_HEIGHT : (font + 1) * LETTER_HEIGHT, left : left + widths[number]]


@cache
def _index() -> dict:
    return json.loads((FOLDER / "atlas.json").read_text())


@cache
def _sheet(style: str) -> Image.Image:
    if style not in STYLES:
        raise ValueError(f"the styles are {', '.join(STYLES)}, got {style!r}")
    return Image.open(FOLDER / f"{style}.webp").convert("RGBA")


@cache
def _letters() -> NDArray[np.uint8]:
    return np.asarray(Image.open(FOLDER / "letters.png").convert("L"))
