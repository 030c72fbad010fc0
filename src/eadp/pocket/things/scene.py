"""Scenes: everyday things and signs with words, placed from a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from eadp.pocket.things.atlas import STYLES, Kind, font_count, kinds, picture, writing

SIDE = 192
"""Width and height of a scene in pixels."""

LARGE_SIDE = 2 * SIDE
"""Width and height of a large scene, which is read as five images: see `render.crop_five`."""

SIGN = -1
"""The number of a sign, where other things have the number of their kind."""

SIGN_NAME = "sign"
WORDS = (
    *("STOP", "EXIT", "OPEN", "TAXI", "CAFE", "SHOP", "PARK", "BANK", "SALE", "HOTEL", "BUS", "ZOO"),
    *("MENU", "FARM", "CLUB", "GYM", "BOOKS", "TOYS", "WAIT", "SLOW", "PUSH", "PULL", "FREE", "NEW"),
    *("HELP", "HOME", "LEFT", "MUSIC", "NORTH", "SOUTH", "EAST", "WEST", "POOL", "BEACH", "GATE", "LIFT"),
    *("POST", "RENT", "SOLD", "TEA", "VOTE", "WET", "BAKERY", "KEEP", "QUIET", "DANGER", "MARKET", "SCHOOL"),
)
"""The words on signs."""

SIGN_COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (200, 34, 38),
    "yellow": (244, 212, 44),
    "green": (30, 132, 62),
    "blue": (34, 82, 190),
    "white": (240, 240, 236),
    "black": (34, 34, 38),
}
GROUNDS = ("plain", "cloudy", "noisy", "striped", "photo")

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

FEWEST_THINGS, MOST_THINGS = 4, 14
SMALLEST, LARGEST = 20, 60
"""Pixels along the longer side of a thing."""

SMALL = 24
"""A thing whose longer side is below this is small: it covers three patches or fewer along each side."""

MOST_SIGNS = 2
MOST_COVERED = 0.55
"""Largest share of a thing's box that things in front of it may cover when they are placed."""

TRIES = 24
"""Positions that are tried for a thing before it is left out."""

Box = tuple[float, float, float, float]
"""Top, left, bottom, right, as shares of the image."""


@dataclass(frozen=True)
class Thing:
    """One thing of a scene.

    Attributes:
        kind: The number of its kind in the atlas, or `SIGN`.
        style: One of the styles of the atlas; for a sign, the number of its font as text.
        size: Pixels along its longer side before it is turned; the height of a sign.
        x: The left edge in pixels.
        y: The top edge in pixels.
        angle: Rotation in degrees.
        mirrored: Whether left and right are exchanged.
        word: The word on a sign.
        colour: The colour of a sign.
    """

    kind: int
    style: str
    size: int
    x: int = 0
    y: int = 0
    angle: int = 0
    mirrored: bool = False
    word: str = ""
    colour: str = ""

    @property
    def name(self) -> str:
        """The name of its kind."""
        return SIGN_NAME if self.kind == SIGN else kinds()[self.kind].name

    @property
    def category(self) -> str:
        """The category of its kind."""
        return SIGN_NAME if self.kind == SIGN else kinds()[self.kind].category

    @property
    def width(self) -> int:
        """Width in pixels."""
        return sprite(self).shape[1]

    @property
    def height(self) -> int:
        """Height in pixels."""
        return sprite(self).shape[0]

    @property
    def centre(self) -> tuple[float, float]:
        """The middle, in pixels from the left and from the top."""
        return self.x + self.width / 2, self.y + self.height / 2

    @property
    def is_held_out(self) -> bool:
        """Whether training never shows a thing of this kind in this style."""
        return self.kind != SIGN and self.style in kinds()[self.kind].held_out


@dataclass(frozen=True)
class Scene:
    """A scene.

    Attributes:
        things: The things, from back to front.
        ground: The kind of background, one of `GROUNDS`.
        seed: The seed of everything else: texture, crop of the photograph, distractors.
        side: Width and height in pixels.
    """

    things: tuple[Thing, ...]
    ground: str
    seed: tuple[int, ...]
    side: int = SIDE

    def box(self, index: int) -> Box:
        """Return the box of a thing, hidden parts included."""
        thing = self.things[index]
        edges = (thing.y, thing.x, thing.y + thing.height, thing.x + thing.width)
        top, left, bottom, right = (min(max(edge / self.side, 0.0), 1.0) for edge in edges)
        return top, left, bottom, right


def make_scene(split: Split, index: int, side: int = SIDE) -> Scene:
    """Make scene number `index` of a split. The split is part of the seed, so that splits never share a scene.

    Args:
        split: The split.
        index: The number of the scene, from 0.
        side: `SIDE`, or `LARGE_SIDE` for a scene with twice as many things of the same sizes.

    Raises:
        ValueError: If there is no such split or side, or the index is negative.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if index < 0:
        raise ValueError(f"scenes are numbered from 0, got {index}")
    if side not in (SIDE, LARGE_SIDE):
        raise ValueError(f"a scene has {SIDE} or {LARGE_SIDE} pixels along each side, got {side}")
    scale = side // SIDE
    seed = (20, SPLITS.index(split), index) if scale == 1 else (20, SPLITS.index(split), index, scale)
    rng = np.random.default_rng(seed)
    wanted = scale * int(rng.integers(FEWEST_THINGS, MOST_THINGS + 1))
    signs = int(rng.choice(MOST_SIGNS + 1, p=(0.4, 0.4, 0.2)))
    sketches = [_sketch_thing(rng, kind, wanted // scale, split) for kind in _choose_kinds(rng, wanted - signs)]
    for colour in rng.permutation(len(SIGN_COLOURS))[:signs]:
        sketches.append(_sketch_sign(rng, tuple(SIGN_COLOURS)[colour]))
    # Large things are placed first: they find room, and small ones are not lost behind them.
    sketches.sort(key=lambda sketch: -sketch.width * sketch.height)
    placed: list[Thing] = []
    covered: list[float] = []
    for sketch in sketches:
        _place(rng, sketch, side, placed, covered)
    ground = GROUNDS[int(rng.choice(len(GROUNDS), p=(0.1, 0.2, 0.15, 0.15, 0.4)))]
    return Scene(tuple(placed), ground, seed, side)


@lru_cache(maxsize=2048)
def _sprite(kind: int, style: str, size: int, angle: int, mirrored: bool, word: str, colour: str) -> NDArray[np.uint8]:
    if kind == SIGN:
        return turn(_board(word, colour, int(style), size), angle, mirrored)
    return turn(shrink(picture(kind, style), size), angle, mirrored)


def shrink(image: Image.Image, size: int) -> Image.Image:
    """Scale a picture so that its longer side has `size` pixels."""
    scale = size / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BOX if scale < 0.5 else Image.Resampling.HAMMING)


def turn(image: Image.Image, angle: int, mirrored: bool) -> NDArray[np.uint8]:
    """Mirror a picture, if so wanted, and turn it by an angle in degrees: h×w×4, which cannot be written to."""
    if mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if angle:
        image = image.rotate(angle, Image.Resampling.BILINEAR, expand=True)
    pixels = np.asarray(image)
    pixels.setflags(write=False)
    return pixels


def sprite(thing: Thing) -> NDArray[np.uint8]:
    """Return a thing as it is drawn: h×w×4, RGB with premultiplied alpha."""
    return _sprite(thing.kind, thing.style, thing.size, thing.angle, thing.mirrored, thing.word, thing.colour)


def _board(word: str, colour: str, font: int, height: int) -> Image.Image:
    """Draw a sign: a board with a thin frame and a word on it."""
    ink = writing(word, font)
    tall = height - 4
    wide = max(4, round(ink.width * tall / ink.height))
    ink = ink.resize((wide, tall), Image.Resampling.BOX)
    fill = SIGN_COLOURS[colour]
    pen = (250, 250, 250) if sum(fill) < 420 else (16, 16, 20)
    board = Image.new("RGB", (wide + 8, height), pen)
    board.paste(fill, (1, 1, wide + 7, height - 1))
    board.paste(pen, (4, 2), ink)
    return board.convert("RGBA").convert("RGBa")


@cache
def _by_category() -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for number, kind in enumerate(kinds()):
        found.setdefault(kind.category, []).append(number)
    return {category: tuple(numbers) for category, numbers in found.items()}


def _choose_kinds(rng: np.random.Generator, count: int) -> list[int]:
    """Choose kinds. A third of the scenes have several of one kind, a quarter one that differs from all others."""
    total = len(kinds())
    chosen = [int(number) for number in rng.choice(total, size=count, replace=False)]
    plan = rng.random()
    if plan < 0.35:
        copies = int(rng.integers(2, 6))
        chosen[: min(copies, count)] = [chosen[0]] * min(copies, count)
    elif plan < 0.6 and count > 3:
        large = [numbers for numbers in _by_category().values() if len(numbers) >= 10]
        theme = large[int(rng.integers(len(large)))]
        size = min(count - 1, len(theme), 6)
        others = [number for number in chosen if number not in theme][:1]
        same = [int(number) for number in rng.choice(theme, size=size, replace=False)]
        chosen = same + others
    return chosen


def _sketch_thing(rng: np.random.Generator, kind: int, total: int, split: Split) -> Thing:
    described: Kind = kinds()[kind]
    styles = described.styles if split == "train" else STYLES
    style = styles[int(rng.integers(len(styles)))]
    largest = LARGEST - 2 * max(0, total - 6)
    size = SMALLEST + int((largest - SMALLEST + 1) * rng.random() ** 1.4)
    angle = 5 * int(rng.integers(-4, 5))
    return Thing(kind, style, size, angle=angle, mirrored=bool(rng.random() < 0.5))


def _sketch_sign(rng: np.random.Generator, colour: str) -> Thing:
    word = WORDS[int(rng.integers(len(WORDS)))]
    return Thing(SIGN, str(rng.integers(font_count())), int(rng.integers(20, 31)), word=word, colour=colour)


def _place(rng: np.random.Generator, sketch: Thing, side: int, placed: list[Thing], covered: list[float]) -> None:
    """Put a thing in front of those that are already placed, unless no try leaves enough of them visible."""
    high, wide = sprite(sketch).shape[:2]
    for _ in range(TRIES):
        x, y = int(rng.integers(0, side - wide)), int(rng.integers(0, side - high))
        shares = [_covered_share(other, x, y, wide, high) for other in placed]
        limits = (0.1 if other.kind == SIGN else MOST_COVERED for other in placed)
        if all(old + new <= limit for old, new, limit in zip(covered, shares, limits, strict=True)):
            covered[:] = [old + new for old, new in zip(covered, shares, strict=True)] + [0.0]
            placed.append(replace(sketch, x=x, y=y))
            return


def _covered_share(behind: Thing, x: int, y: int, wide: int, high: int) -> float:
    width, height = behind.width, behind.height
    across = min(behind.x + width, x + wide) - max(behind.x, x)
    down = min(behind.y + height, y + high) - max(behind.y, y)
    return max(across, 0) * max(down, 0) / (width * height)
