"""Things in styles that nobody drew, so that the tower learns what a thing is and not who drew it.

Each kind of thing comes in a few styles, and for every fifth kind training lacks one. A tower that sees each style as
it was drawn learns from that which kinds a style has, and takes a thing in a style that it lacks for another kind.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from eadp.pocket.things.atlas import kinds
from eadp.pocket.things.scene import SIGN, Thing, sprite

MIXED, COLOURED, FLATTENED, GREY, SQUEEZED = 0.5, 0.5, 0.2, 0.1, 0.3
"""Shares of the things that mix two styles, whose colours are changed, that are drawn in a few colours, that lose their
colours, and that are narrower or lower than they are in any style."""

MOST_SQUEEZED = 0.75
"""The least share of its width or height that a squeezed thing has left."""


def paint(thing: Thing, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw a thing in a style that nobody drew, h×w×4. Signs stay as they are."""
    pixels = sprite(thing)
    if thing.kind == SIGN:
        return pixels
    mixed, coloured, flattened, grey, squeezed = rng.random(5) < (MIXED, COLOURED, FLATTENED, GREY, SQUEEZED)
    if mixed:
        pixels = _mix(pixels, thing, rng)
    if coloured:
        mixing = np.eye(3) * rng.uniform(0.7, 1.2, 3) + rng.uniform(-0.25, 0.25, (3, 3))
        pixels = _with_colours(pixels, pixels[..., :3] @ mixing.T + rng.uniform(-0.1, 0.1, 3) * pixels[..., 3:])
    if flattened:
        step = 255 / int(rng.integers(2, 6))
        pixels = _with_colours(pixels, np.round(pixels[..., :3] / step) * step)
    if grey:
        pixels = _with_colours(pixels, pixels[..., :3].mean(-1, keepdims=True).repeat(3, -1))
    return _squeeze(pixels, rng) if squeezed else pixels


def _mix(pixels: NDArray[np.uint8], thing: Thing, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Mix a drawing with the same thing in another style: both everywhere, or one's shape with the other's colours."""
    styles = kinds()[thing.kind].styles
    other = Image.fromarray(sprite(replace(thing, style=styles[int(rng.integers(len(styles)))])), "RGBa")
    resized = np.asarray(other.resize(pixels.shape[1::-1], Image.Resampling.BOX))
    if rng.random() < 0.5:
        share = rng.uniform(0.2, 0.8)
        return (pixels * share + resized * (1 - share)).astype(np.uint8)
    shown, painted = pixels[..., 3:] > 0, resized[..., 3:] > 0
    own, theirs = (_statistics(image, where) for image, where in ((pixels, shown), (resized, painted)))
    colours = (pixels[..., :3] - own[0]) / own[1] * theirs[1] + theirs[0]
    return _with_colours(pixels, np.where(shown, colours, 0))


def _statistics(pixels: NDArray[np.uint8], where: NDArray[np.bool_]) -> tuple[NDArray, NDArray]:
    """Return mean and deviation of the colours of the pixels that are shown."""
    shown = pixels[where[..., 0], :3].astype(np.float32)
    return (shown.mean(0), shown.std(0) + 1) if len(shown) else (np.zeros(3, np.float32), np.ones(3, np.float32))


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
