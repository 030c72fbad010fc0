"""Render scenes in integer arithmetic, so that a scene has the same pixels on every machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from eadp.pocket.things.scene import LARGE_SIDE, SIDE, Scene, Thing, sprite

PATCH = 8
GRID = SIDE // PATCH
"""Patches along each side of a scene."""

OWNED_SHARE = 16
"""A patch shows a thing if the thing is what at least this many of its 64 pixels show."""

PHOTO_SIDE = 160
"""Pixels along each side of a tile of photos.png."""

_PHOTOS = Path(__file__).parents[1] / "world" / "photos.png"


@dataclass(frozen=True)
class Drawing:
    """A rendered scene.

    Attributes:
        pixels: side×side×3.
        shown: side×side, the index of the thing that each pixel shows; −1 for the background.
        areas: Per thing, the number of pixels that it would show with nothing in front of it.
    """

    pixels: NDArray[np.uint8]
    shown: NDArray[np.int8]
    areas: NDArray[np.int64]

    @property
    def image(self) -> Image.Image:
        """The image for a processor."""
        return Image.fromarray(self.pixels)

    @cached_property
    def visible(self) -> NDArray[np.float64]:
        """Per thing, the share of its pixels that nothing in front of it hides."""
        counts = np.bincount(self.shown.ravel() + 1, minlength=len(self.areas) + 1)[1:]
        return counts / np.maximum(self.areas, 1)

    @cached_property
    def owners(self) -> NDArray[np.int8]:
        """Per patch, the index of the thing that most of its covered pixels show; −1 for none."""
        grid = len(self.shown) // PATCH
        blocks = self.shown.reshape(grid, PATCH, grid, PATCH).swapaxes(1, 2).reshape(grid * grid, PATCH * PATCH)
        number = len(self.areas) + 1
        index = np.arange(grid * grid)[:, None] * number + blocks + 1
        counts = np.bincount(index.ravel(), minlength=grid * grid * number).reshape(-1, number)[:, 1:]
        if number == 1:
            return np.full(grid * grid, -1, np.int8)
        return np.where(counts.max(1) >= OWNED_SHARE, counts.argmax(1), -1).astype(np.int8)


def render(scene: Scene, paint: Callable[[Thing], NDArray[np.uint8]] = sprite) -> Drawing:
    """Render a scene.

    Args:
        scene: The scene.
        paint: Draws a thing: h×w×4, RGB with premultiplied alpha.
    """
    return _draw_things(scene, _draw_ground(scene), paint)


def render_clip(frames: Sequence[Scene]) -> list[Drawing]:
    """Render the frames of a clip, which share the background."""
    ground = _draw_ground(frames[0])
    return [_draw_things(frame, ground.copy(), sprite) for frame in frames]


def _draw_ground(scene: Scene) -> NDArray[np.uint16]:
    rng = np.random.default_rng((*scene.seed, 1))
    canvas = _GROUNDS[scene.ground](rng, scene.side).astype(np.uint16)
    _draw_distractors(canvas, rng)
    return canvas


def _draw_things(scene: Scene, canvas: NDArray[np.uint16], paint: Callable[[Thing], NDArray[np.uint8]]) -> Drawing:
    """Draw the things of a scene on a canvas that shows the background."""
    side = scene.side
    shown = np.full((side, side), -1, np.int8)
    areas = np.zeros(len(scene.things), np.int64)
    for number, thing in enumerate(scene.things):
        pixels = paint(thing)
        top, left = max(thing.y, 0), max(thing.x, 0)
        pixels = pixels[top - thing.y : max(side - thing.y, 0), left - thing.x : max(side - thing.x, 0)]
        if not pixels.size:
            continue
        region = (slice(top, top + pixels.shape[0]), slice(left, left + pixels.shape[1]))
        alpha = pixels[..., 3:].astype(np.uint16)
        canvas[region] = (canvas[region] * (255 - alpha) + 127) // 255 + pixels[..., :3]
        covers = pixels[..., 3] > 127
        shown[region][covers] = number
        areas[number] = covers.sum()
    return Drawing(np.minimum(canvas, 255).astype(np.uint8), shown, areas)


def crop_five(drawing: Drawing) -> tuple[NDArray[np.uint8], ...]:
    """Cut a large scene as LLaVA-NeXT does: the whole, reduced to SIDE×SIDE, and its four quarters.

    Raises:
        ValueError: If the scene is not large.
    """
    if len(drawing.pixels) != LARGE_SIDE:
        raise ValueError(f"only a scene of {LARGE_SIDE} pixels is cut into five, got {len(drawing.pixels)}")
    whole = np.asarray(drawing.image.resize((SIDE, SIDE), Image.Resampling.BOX))
    halves = (slice(None, SIDE), slice(SIDE, None))
    return (whole, *(drawing.pixels[rows, columns] for rows in halves for columns in halves))


def _plain(rng: np.random.Generator, side: int) -> NDArray[np.int64]:
    base = rng.integers(40, 220) + rng.integers(-30, 31, 3)
    slope = np.arange(side) * rng.integers(-40, 41) // side
    return np.clip(base + slope[:, None, None] + np.zeros((side, side, 1), np.int64), 0, 255)


def _cloudy(rng: np.random.Generator, side: int) -> NDArray[np.int64]:
    """Smooth blobs of two or more colours."""
    cells = int(rng.integers(3, 16))
    small = rng.integers(30, 226, (cells, cells, 3))
    small = (small + rng.integers(60, 200, 3)) // 2
    image = Image.fromarray(small.astype(np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
    return np.asarray(image, np.int64)


def _noisy(rng: np.random.Generator, side: int) -> NDArray[np.int64]:
    strength = int(rng.integers(10, 45))
    grain = rng.integers(-strength, strength + 1, (side, side, 1))
    return np.clip(_plain(rng, side) + grain, 0, 255)


def _striped(rng: np.random.Generator, side: int) -> NDArray[np.int64]:
    """Stripes or checks, in any of eight directions."""
    period = int(rng.integers(6, 40))
    across, down = ((1, 0), (0, 1), (1, 1), (1, -1), (2, 1), (1, 2), (2, -1), (1, -2))[rng.integers(8)]
    along = np.arange(side)
    stripes = (along[None] * across + along[:, None] * down) // period % 2
    if rng.random() < 0.4:
        stripes = stripes ^ ((along[None] * -down + along[:, None] * across) // period % 2)
    strength = rng.integers(8, 50, 3)
    return np.clip(_plain(rng, side) + (2 * stripes[..., None] - 1) * strength, 0, 255)


def _photo(rng: np.random.Generator, side: int) -> NDArray[np.int64]:
    """A part of a photograph, enlarged, mirrored or turned, darker or lighter, sometimes with exchanged colours."""
    tile = _photos()[rng.integers(len(_photos()))]
    part = int(rng.integers(80, PHOTO_SIDE + 1))
    top, left = rng.integers(PHOTO_SIDE - part + 1, size=2)
    image = Image.fromarray(tile[top : top + part, left : left + part])
    crop = np.asarray(image.resize((side, side), Image.Resampling.BICUBIC), np.int64)
    crop = np.rot90(crop, int(rng.integers(4)))
    if rng.random() < 0.3:
        crop = crop[..., rng.permutation(3)]
    return np.clip(crop * rng.integers(50, 115) // 100 + rng.integers(0, 40), 0, 255)


_GROUNDS = {"plain": _plain, "cloudy": _cloudy, "noisy": _noisy, "striped": _striped, "photo": _photo}


@cache
def _photos() -> NDArray[np.uint8]:
    """Load the tiles of photos.png, n×PHOTO_SIDE×PHOTO_SIDE×3. Their sources are in photos.md beside it."""
    sheet = np.asarray(Image.open(_PHOTOS).convert("RGB"))
    down, across = sheet.shape[0] // PHOTO_SIDE, sheet.shape[1] // PHOTO_SIDE
    return sheet.reshape(down, PHOTO_SIDE, across, PHOTO_SIDE, 3).swapaxes(1, 2).reshape(-1, PHOTO_SIDE, PHOTO_SIDE, 3)


def _draw_distractors(canvas: NDArray[np.uint16], rng: np.random.Generator) -> None:
    """Draw a few bars, discs and dots in any colour, half transparent or not, that no question asks about."""
    side = len(canvas)
    for _ in range(rng.integers(0, 6)):
        high, wide = ((3, 40), (40, 3), (6, 6), (24, 24), (12, 30))[rng.integers(5)]
        high, wide = (max(2, edge * int(rng.integers(50, 151)) // 100) for edge in (high, wide))
        top, left = rng.integers(0, side - high), rng.integers(0, side - wide)
        patch = canvas[top : top + high, left : left + wide]
        colour = rng.integers(0, 256, 3)
        share = int(rng.integers(20, 81))
        painted = (patch * (100 - share) + colour * share) // 100
        if rng.random() < 0.5:
            down, along = 2 * np.arange(high) + 1 - high, 2 * np.arange(wide) + 1 - wide
            inside = (down[:, None] * wide) ** 2 + (along[None] * high) ** 2 <= (high * wide) ** 2
            painted = np.where(inside[..., None], painted, patch)
        patch[:] = painted
