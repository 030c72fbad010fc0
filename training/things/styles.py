"""Things by other hands and in styles that nobody drew, so that the tower learns what a thing is and not who drew it.

Each kind of thing comes in a few styles, and for every fifth kind training lacks those of one hand. A tower that sees
each style as it was drawn learns from that which kinds a style has, and takes a thing in a style that it lacks for
another kind.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from eadp.pocket.things.atlas import kinds
from eadp.pocket.things.scene import SIGN, Thing, shrink, sprite, turn
from training.things.hands import hands_of, picture

AS_DRAWN = 0.35
"""Share of the things that stay as they are in the atlas."""

OTHER_HAND = 0.5
"""Share of the others that are as another hand drew them, of the kinds that other hands have drawn."""

MIXED, BORROWED, COLOURED, FLATTENED, GREY, WARPED, LIT = 0.4, 0.15, 0.4, 0.15, 0.1, 0.4, 0.3
"""Shares of those that mix two styles, that borrow the colours of a thing of any kind, whose colours are changed,
that are drawn in a few colours, that lose their colours, whose shape is warped, and that are lit from one side."""

BENDS, MOST_BENT = 3, 0.12
"""A warp moves BENDS×BENDS points of a thing by up to this share of its width and height, and what is between them
smoothly."""

SHADE = 0.45
"""How much darker the far side of a lit thing is at most, and how much lighter the near side."""


def paint(thing: Thing, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw most things by another hand, or in a style that nobody drew, h×w×4. Signs stay as they are."""
    if thing.kind == SIGN or rng.random() < AS_DRAWN:
        return sprite(thing)
    pixels = _by_another_hand(thing, rng) if rng.random() < OTHER_HAND and hands_of(thing.kind) else sprite(thing)
    mixed, borrowed, coloured, flattened, grey, warped, lit = rng.random(7) < (
        (MIXED, BORROWED, COLOURED, FLATTENED, GREY, WARPED, LIT)
    )
    if mixed:
        pixels = _mix(pixels, thing, rng)
    if borrowed:
        other = kinds()[kind := int(rng.integers(len(kinds())))]
        style = other.styles[int(rng.integers(len(other.styles)))]
        pixels = _with_colours_of(pixels, sprite(replace(thing, kind=kind, style=style)))
    if coloured:
        mixing = np.eye(3) * rng.uniform(0.7, 1.2, 3) + rng.uniform(-0.25, 0.25, (3, 3))
        pixels = _with_colours(pixels, pixels[..., :3] @ mixing.T + rng.uniform(-0.1, 0.1, 3) * pixels[..., 3:])
    if flattened:
        step = 255 / int(rng.integers(2, 6))
        pixels = _with_colours(pixels, np.round(pixels[..., :3] / step) * step)
    if grey:
        pixels = _with_colours(pixels, pixels[..., :3].mean(-1, keepdims=True).repeat(3, -1))
    if lit:
        pixels = _light(pixels, rng)
    return _warp(pixels, rng) if warped else pixels


def _by_another_hand(thing: Thing, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw a thing as another hand did, as large as it is."""
    hands = hands_of(thing.kind)
    drawn = shrink(picture(thing.kind, hands[int(rng.integers(len(hands)))]), thing.size)
    turned = Image.fromarray(turn(drawn, thing.angle, thing.mirrored), "RGBa")
    return np.asarray(turned.resize((thing.width, thing.height), Image.Resampling.BOX))


def _mix(pixels: NDArray[np.uint8], thing: Thing, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Mix a drawing with the same thing in another style: both everywhere, or one's shape with the other's colours."""
    styles = kinds()[thing.kind].styles
    other = sprite(replace(thing, style=styles[int(rng.integers(len(styles)))]))
    if rng.random() < 0.5:
        return _with_colours_of(pixels, other)
    resized = Image.fromarray(other, "RGBa").resize(pixels.shape[1::-1], Image.Resampling.BOX)
    share = rng.uniform(0.2, 0.8)
    return (pixels * share + np.asarray(resized) * (1 - share)).astype(np.uint8)


def _with_colours_of(pixels: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Give an image, h×w×4, the mean and the deviation of the colours of another one, of any size."""
    shown = pixels[..., 3:] > 0
    own, theirs = _statistics(pixels, shown), _statistics(other, other[..., 3:] > 0)
    return _with_colours(pixels, np.where(shown, (pixels[..., :3] - own[0]) / own[1] * theirs[1] + theirs[0], 0))


def _statistics(pixels: NDArray[np.uint8], where: NDArray[np.bool_]) -> tuple[NDArray, NDArray]:
    """Return mean and deviation of the colours of the pixels that are shown."""
    shown = pixels[where[..., 0], :3].astype(np.float32)
    return (shown.mean(0), shown.std(0) + 1) if len(shown) else (np.zeros(3, np.float32), np.ones(3, np.float32))


def _with_colours(pixels: NDArray[np.uint8], colours: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Return an image, h×w×4, with other premultiplied colours, h×w×3, of any range."""
    alpha = pixels[..., 3:]
    return np.concatenate((np.minimum(np.clip(colours, 0, 255).astype(np.uint8), alpha), alpha), -1)


def _light(pixels: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return an image, h×w×4, that is lighter on one side and darker on the other."""
    height, width = pixels.shape[:2]
    down, across = np.linspace(-1, 1, height)[:, None], np.linspace(-1, 1, width)
    angle, strength = rng.uniform(0, 2 * np.pi), rng.uniform(0, SHADE)
    light = 1 + strength * (np.cos(angle) * across + np.sin(angle) * down)
    return _with_colours(pixels, pixels[..., :3] * light[..., None])


def _warp(pixels: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return an image of the same size, h×w×4, whose shapes are bent and stretched smoothly."""
    height, width = pixels.shape[:2]
    bends = rng.uniform(-MOST_BENT, MOST_BENT, (2, BENDS, BENDS)).astype(np.float32)
    down, across = (
        np.asarray(Image.fromarray(bend).resize((width, height), Image.Resampling.BICUBIC)) for bend in bends
    )
    rows = np.rint(np.arange(height)[:, None] + down * height).astype(int)
    columns = np.rint(np.arange(width) + across * width).astype(int)
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    return pixels[rows.clip(0, height - 1), columns.clip(0, width - 1)] * inside[..., None]
