"""Crowds: training scenes in which small things stand side by side, in styles of their own.

Small things are the hardest to recognise. In a crowd nearly every patch shows one, so it teaches more of them in the
same time than a scene that people are asked about. Only the vision stage sees crowds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from eadp.pocket.things.atlas import kinds
from eadp.pocket.things.captions import window_view
from eadp.pocket.things.render import GRID, render
from eadp.pocket.things.scene import GROUNDS, SIDE, SMALLEST, Scene, Thing
from training.things.styles import paint
from training.things.windows import WINDOW, Patches, cut, describe, stack

WINDOWS_PER_CROWD = (GRID // WINDOW) ** 2
SPACINGS = (22, 25, 28, 34, 42)
"""Pixels from one thing to the next; a crowd has one of them."""

JITTER = 0.2
"""How far a thing may lie from its place, as a share of the spacing."""


def draw_crowds(first: int, crowds: int) -> Patches:
    """Draw the training crowds first, first + 1, …, each cut into `WINDOWS_PER_CROWD` windows."""
    parts, views = [], []
    for index in range(first, first + crowds):
        scene = make_crowd(index)
        rng = np.random.default_rng((*scene.seed, 2))
        drawing = render(scene, lambda thing, rng=rng: paint(thing, rng))  # type: ignore[misc]
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
