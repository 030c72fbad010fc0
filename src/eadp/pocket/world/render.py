"""Render scenes: stencils of shapes and writing, blended onto a background."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import cos, pi, sin
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from eadp.pocket.world.scene import PALETTE, SIDE, SIGN, Scene, Thing

Pixels = NDArray[np.uint8]
Stencil = NDArray[np.float32]
ShapeDrawer = Callable[[ImageDraw.ImageDraw, int, int], None]

SUPERSAMPLING = 4
"""Stencils are drawn this many times larger and then reduced, for soft edges."""

PHOTO_SIDE = 160
"""Pixels along each side of a tile of photos.png."""


def render(scene: Scene) -> tuple[Pixels, NDArray[np.float32]]:
    """Render a scene.

    Returns:
        The image, SIDE×SIDE×3; and per thing the share of each pixel that shows it, things×SIDE×SIDE, in [0, 1].
    """
    rng = np.random.default_rng((*scene.seed, 1))
    canvas = _background(scene.background, rng)
    _draw_distractors(canvas, rng)
    visible = np.zeros((len(scene.things), SIDE, SIDE), np.float32)
    for number, thing in enumerate(scene.things):
        stencil = _stencil(thing.shape, thing.width, thing.height, thing.angle)
        top, left = _corner(thing)
        rows, columns = slice(top, top + stencil.shape[0]), slice(left, left + stencil.shape[1])
        visible[:, rows, columns] *= 1 - stencil
        visible[number, rows, columns] = stencil
        canvas[rows, columns] += stencil[..., None] * (_paint(thing, stencil.shape, rng) - canvas[rows, columns])
    return np.clip(canvas, 0, 255).astype(np.uint8), visible


def render_image(scene: Scene) -> Image.Image:
    """Render a scene as an image for the processor."""
    return Image.fromarray(render(scene)[0])


def _corner(thing: Thing) -> tuple[int, int]:
    return round(thing.y - thing.height / 2), round(thing.x - thing.width / 2)


def _paint(thing: Thing, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
    """Paint a thing in its colour, with small random variation and shading; on a sign, also a frame and its writing."""
    base = np.array(PALETTE[thing.colour], np.float32) + rng.normal(0, 6, 3).astype(np.float32)
    light = np.linspace(1.06, 0.9, shape[0], dtype=np.float32)[:, None, None]
    paint = np.broadcast_to(base * light, (*shape, 3)).copy()
    if thing.shape == SIGN:
        ink = _ink(thing.writing or "", thing.width, thing.height)[..., None]
        dark = np.array((20, 20, 24), np.float32) if base @ (0.3, 0.59, 0.11) > 120 else np.float32(250)
        paint += ink * (dark - paint)
    return paint


@cache
def _stencil(shape: str, width: int, height: int, angle: int) -> Stencil:
    large = Image.new("L", (width * SUPERSAMPLING, height * SUPERSAMPLING))
    pen = ImageDraw.Draw(large)
    _DRAWERS[shape](pen, width * SUPERSAMPLING - 1, height * SUPERSAMPLING - 1)
    if angle:
        large = large.rotate(angle, Image.Resampling.BILINEAR)
    return np.asarray(large.resize((width, height), Image.Resampling.BOX), np.float32) / np.float32(255)


@cache
def _ink(writing: str, width: int, height: int) -> Stencil:
    """Draw a thin frame and the writing, as large as fits on the sign."""
    large = Image.new("L", (width * SUPERSAMPLING, height * SUPERSAMPLING))
    pen = ImageDraw.Draw(large)
    available = (width - 7) * SUPERSAMPLING if len(writing) > 1 else width * SUPERSAMPLING
    size = height * SUPERSAMPLING
    while pen.textlength(writing, font=ImageFont.load_default(size)) > available:
        size -= 1
    centre = (width * SUPERSAMPLING / 2, height * SUPERSAMPLING / 2)
    pen.text(centre, writing, fill=255, font=ImageFont.load_default(size), anchor="mm", stroke_width=SUPERSAMPLING // 3)
    pen.rectangle((0, 0, width * SUPERSAMPLING - 1, height * SUPERSAMPLING - 1), outline=255, width=SUPERSAMPLING)
    return np.asarray(large.resize((width, height), Image.Resampling.BOX), np.float32) / np.float32(255)


def _polygon(points: list[tuple[float, float]]) -> ShapeDrawer:
    def draw_polygon(pen: ImageDraw.ImageDraw, width: int, height: int) -> None:
        pen.polygon([(x * width, y * height) for x, y in points], fill=255)

    return draw_polygon


def _circle(pen: ImageDraw.ImageDraw, width: int, height: int) -> None:
    pen.ellipse((0, 0, width, height), fill=255)


def _ring(pen: ImageDraw.ImageDraw, width: int, height: int) -> None:
    pen.ellipse((0, 0, width, height), fill=255)
    pen.ellipse((0.28 * width, 0.28 * height, 0.72 * width, 0.72 * height), fill=0)


def _moon(pen: ImageDraw.ImageDraw, width: int, height: int) -> None:
    pen.ellipse((0, 0, width, height), fill=255)
    pen.ellipse((0.38 * width, -0.02 * height, 1.2 * width, 0.8 * height), fill=0)


def _heart(pen: ImageDraw.ImageDraw, width: int, height: int) -> None:
    turns = (2 * pi * step / 60 for step in range(60))
    points = [(16 * sin(t) ** 3, 13 * cos(t) - 5 * cos(2 * t) - 2 * cos(3 * t) - cos(4 * t)) for t in turns]
    pen.polygon([((x / 16 + 1) / 2 * width, (12 - y) / 29 * height) for x, y in points], fill=255)


def _star_points() -> list[tuple[float, float]]:
    radii = (0.5 if step % 2 == 0 else 0.21 for step in range(10))
    return [(0.5 + r * sin(pi * step / 5), 0.5 - r * cos(pi * step / 5)) for step, r in enumerate(radii)]


_BAR = 0.34
_CROSS = [(_BAR, 0), (1 - _BAR, 0), (1 - _BAR, _BAR), (1, _BAR), (1, 1 - _BAR), (1 - _BAR, 1 - _BAR)]
_CROSS += [(1 - x, 1 - y) for x, y in _CROSS]
_DRAWERS = {
    "circle": _circle,
    "ring": _ring,
    "moon": _moon,
    "heart": _heart,
    "square": _polygon([(0.06, 0.06), (0.94, 0.06), (0.94, 0.94), (0.06, 0.94)]),
    "triangle": _polygon([(0.5, 0.02), (1, 0.95), (0, 0.95)]),
    "star": _polygon(_star_points()),
    "cross": _polygon(_CROSS),
    SIGN: _polygon([(0, 0), (1, 0), (1, 1), (0, 1)]),
}


@cache
def _photos() -> NDArray[np.float32]:
    """Load the tiles of photos.png, n×PHOTO_SIDE×PHOTO_SIDE×3. Their sources are in photos.md."""
    sheet = np.asarray(Image.open(Path(__file__).parent / "photos.png").convert("RGB"), np.float32)
    down, across = sheet.shape[0] // PHOTO_SIDE, sheet.shape[1] // PHOTO_SIDE
    tiles = sheet.reshape(down, PHOTO_SIDE, across, PHOTO_SIDE, 3).swapaxes(1, 2)
    return tiles.reshape(-1, PHOTO_SIDE, PHOTO_SIDE, 3)


def _background(kind: str, rng: np.random.Generator) -> NDArray[np.float32]:
    base = rng.uniform(50, 190) + rng.uniform(-25, 25, 3)
    canvas = np.broadcast_to(base.astype(np.float32), (SIDE, SIDE, 3))
    if kind == "photo":
        tile = _photos()[rng.integers(len(_photos()))]
        top, left = rng.integers(PHOTO_SIDE - SIDE + 1, size=2)
        crop = tile[top : top + SIDE, left : left + SIDE]
        crop = crop[:, ::-1] if rng.random() < 0.5 else crop
        return crop * np.float32(rng.uniform(0.55, 1.0))
    if kind == "noisy":
        grain = rng.normal(0, 22, (SIDE, SIDE, 1)).astype(np.float32)
        return canvas + grain
    if kind == "striped":
        along = np.arange(SIDE, dtype=np.float32)
        slope_x, slope_y = rng.uniform(-0.6, 0.6, 2)
        waves = np.sin(along[None, :] * np.float32(slope_x) + along[:, None] * np.float32(slope_y))
        return canvas + np.float32(rng.uniform(8, 24)) * waves[..., None]
    return canvas + np.linspace(-20, 20, SIDE, dtype=np.float32)[:, None, None] * np.float32(rng.uniform(-1, 1))


def _draw_distractors(canvas: NDArray[np.float32], rng: np.random.Generator) -> None:
    """Draw a few thin grey bars and dots that no question asks about."""
    for _ in range(rng.integers(0, 4)):
        top, left = rng.integers(0, SIDE - 4, size=2)
        long = int(rng.integers(6, 40))
        tall, wide = ((2, long), (long, 2), (4, 4))[rng.integers(3)]
        canvas[top : top + tall, left : left + wide] = np.float32(rng.uniform(20, 230))
