"""Crowds: training scenes in which small things stand side by side, in colours and mixtures of styles of their own.

Small things are the hardest to recognise. In a crowd nearly every patch shows one, so it teaches more of them in the
same time than a scene that people are asked about. Only the vision stage sees crowds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from eadp.pocket.things.atlas import kinds
from eadp.pocket.things.captions import window_view
from eadp.pocket.things.render import GRID, render
from eadp.pocket.things.scene import GROUNDS, SIDE, SMALLEST, Scene, Thing, sprite
from training.things.windows import WINDOW, Patches, cut, describe, stack

WINDOWS_PER_CROWD = (GRID // WINDOW) ** 2
SPACINGS = (22, 25, 28, 34, 42)
"""Pixels from one thing to the next; a crowd has one of them."""

JITTER = 0.2
"""How far a thing may lie from its place, as a share of the spacing."""

MIXED, COLOURED, FLATTENED, SQUEEZED = 0.4, 0.5, 0.2, 0.3
"""Shares of the things that mix two styles, whose colours are changed, that are drawn in a few colours, and that are
narrower or lower than they are in any style."""

MOST_SQUEEZED = 0.75
"""The least share of its width or height that a squeezed thing has left."""


def draw_crowds(first: int, crowds: int) -> Patches:
    """Draw the training crowds first, first + 1, …, each cut into `WINDOWS_PER_CROWD` windows."""
    parts, views = [], []
    for index in range(first, first + crowds):
        scene = make_crowd(index)
        rng = np.random.default_rng((*scene.seed, 2))
        drawing = render(scene, lambda thing, rng=rng: _paint(thing, rng))  # type: ignore[misc]
        drawn = describe(scene, drawing)
        for top in range(0, GRID, WINDOW):
            for left in range(0, GRID, WINDOW):
                parts.append(cut(drawn, drawing.pixels, top, left, WINDOW))
                views.append(window_view(scene, drawing, top, left, WINDOW))
    return stack(parts, views)


def make_crowd(index: int) -> Scene:
    """Make training crowd number `index`."""
    seed = (21, 0, index)
    rng = np.random.default_rng(seed)
    spacing = int(rng.choice(SPACINGS))
    starts = range(int(rng.integers(-spacing, 0)) // 2, SIDE - spacing // 2, spacing)
    things = [_place(rng, x, y, spacing) for y in starts for x in starts]
    order = rng.permutation(len(things))
    return Scene(tuple(things[i] for i in order), GROUNDS[int(rng.integers(len(GROUNDS)))], seed)


def _place(rng: np.random.Generator, x: int, y: int, spacing: int) -> Thing:
    kind = int(rng.integers(len(kinds())))
    styles = kinds()[kind].styles
    size = max(SMALLEST, int(spacing * rng.uniform(0.8, 1.2)))
    thing = Thing(
        kind, styles[int(rng.integers(len(styles)))], size, 0, 0, 5 * int(rng.integers(-4, 5)), rng.random() < 0.5
    )
    away = rng.uniform(-JITTER, JITTER, 2) * spacing + spacing / 2
    return replace(thing, x=int(x + away[0] - thing.width / 2), y=int(y + away[1] - thing.height / 2))


def _paint(thing: Thing, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw a thing in a style that nobody drew: mixed from two, in other colours, in few colours, squeezed."""
    pixels = sprite(thing)
    mixed, coloured, flattened, squeezed = rng.random(4) < (MIXED, COLOURED, FLATTENED, SQUEEZED)
    if mixed:
        styles = kinds()[thing.kind].styles
        other = Image.fromarray(sprite(replace(thing, style=styles[int(rng.integers(len(styles)))])), "RGBa")
        resized = np.asarray(other.resize(pixels.shape[1::-1], Image.Resampling.BOX))
        share = rng.uniform(0.25, 0.75)
        pixels = (pixels * share + resized * (1 - share)).astype(np.uint8)
    if coloured:
        mixing = np.eye(3) * rng.uniform(0.7, 1.2, 3) + rng.uniform(-0.25, 0.25, (3, 3))
        pixels = _with_colours(pixels, pixels[..., :3] @ mixing.T + rng.uniform(-0.1, 0.1, 3) * pixels[..., 3:])
    if flattened:
        step = 255 / int(rng.integers(2, 6))
        pixels = _with_colours(pixels, np.round(pixels[..., :3] / step) * step)
    return _squeeze(pixels, rng) if squeezed else pixels


def _with_colours(pixels: NDArray[np.uint8], colours: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Return an image, h×w×4, with other premultiplied colours, h×w×3, of any range."""
    alpha = pixels[..., 3:]
    return np.concatenate((np.minimum(np.clip(colours, 0, 255).astype(np.uint8), alpha), alpha), -1)


def _squeeze(pixels: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return an image of the same size whose content is narrower or lower, in the middle."""
    share = rng.uniform(MOST_SQUEEZED, 1)
    height, width = pixels.shape[:2]
    narrow, low = (max(1, round(width * share)), height), (width, max(1, round(height * share)))
    inner = np.asarray(
        Image.fromarray(pixels, "RGBa").resize(narrow if rng.random() < 0.5 else low, Image.Resampling.BOX)
    )
    top, left = (height - inner.shape[0]) // 2, (width - inner.shape[1]) // 2
    squeezed = np.zeros_like(pixels)
    squeezed[top : top + inner.shape[0], left : left + inner.shape[1]] = inner
    return squeezed
