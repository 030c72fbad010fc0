"""Scenes: coloured shapes and signs with writing, generated from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

SIDE = 128
"""Width and height of a scene in pixels."""

PALETTE: dict[str, tuple[int, int, int]] = {
    "red": (214, 38, 38),
    "orange": (245, 138, 24),
    "yellow": (242, 222, 44),
    "green": (42, 160, 58),
    "blue": (38, 84, 214),
    "purple": (132, 48, 172),
    "pink": (246, 140, 190),
    "white": (244, 244, 240),
}
COLOURS = tuple(PALETTE)
FIGURES = ("circle", "square", "triangle", "star", "cross", "ring", "heart", "moon")
SIGN = "sign"
SHAPES = (*FIGURES, SIGN)
WRITINGS = (
    *"0123456789",
    *("A", "B", "C", "E", "H", "K", "M", "R", "S", "T", "X", "Z"),
    *("STOP", "EXIT", "OPEN", "TAXI", "CAFE", "SHOP", "PARK", "BANK"),
)
BACKGROUNDS = ("plain", "noisy", "striped", "photo")

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

MAX_THINGS = 8
MAX_OVERLAP = 0.15
"""Largest share of the smaller of two boxes that the other may cover."""


@dataclass(frozen=True)
class Thing:
    """One object of a scene.

    Attributes:
        shape: One of `SHAPES`.
        colour: One of `COLOURS`.
        x: Centre in pixels from the left.
        y: Centre in pixels from the top.
        width: Width in pixels.
        height: Height in pixels.
        angle: Rotation in degrees.
        writing: The text on a sign; None for other shapes.
    """

    shape: str
    colour: str
    x: float
    y: float
    width: int
    height: int
    angle: int = 0
    writing: str | None = None

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Top, left, bottom, right, as shares of the image."""
        edges = (
            self.y - self.height / 2,
            self.x - self.width / 2,
            self.y + self.height / 2,
            self.x + self.width / 2,
        )
        top, left, bottom, right = (min(max(edge / SIDE, 0.0), 1.0) for edge in edges)
        return top, left, bottom, right

    def overlap(self, other: Thing) -> float:
        """Compute the share of the smaller box that the other one covers."""
        across = (self.width + other.width) / 2 - abs(self.x - other.x)
        down = (self.height + other.height) / 2 - abs(self.y - other.y)
        shared = min(max(across, 0.0), self.width, other.width) * min(max(down, 0.0), self.height, other.height)
        return shared / min(self.width * self.height, other.width * other.height)


@dataclass(frozen=True)
class Scene:
    """A scene.

    Attributes:
        things: The things, from back to front.
        background: The kind of background, one of `BACKGROUNDS`.
        seed: The seed of everything else: noise, crop of the photograph, distractors.
    """

    things: tuple[Thing, ...]
    background: str
    seed: tuple[int, ...]


def make_scene(split: Split, index: int) -> Scene:
    """Make scene number `index` of a split. The split is part of the seed, so that splits never share a scene.

    Raises:
        ValueError: If there is no such split, or the index is negative.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if index < 0:
        raise ValueError(f"scenes are numbered from 0, got {index}")
    seed = (SPLITS.index(split), index)
    rng = np.random.default_rng(seed)
    wanted = int(rng.integers(3, MAX_THINGS + 1))
    signs = int(rng.choice(3, p=(0.3, 0.45, 0.25)))
    colours, shapes = _choose_kinds(rng, wanted)
    sign_colours = rng.permutation(len(COLOURS))[:signs]
    things: list[Thing] = []
    for number in range(wanted):
        if number < signs:
            sketch = _make_sign(rng, COLOURS[sign_colours[number]])
        else:
            sketch = _make_figure(rng, shapes[number], colours[number], total=wanted)
        if (placed := _place(rng, sketch, things)) is not None:
            things.append(placed)
    order = rng.permutation(len(things))
    background = BACKGROUNDS[int(rng.choice(4, p=(0.2, 0.2, 0.2, 0.4)))]
    return Scene(tuple(things[i] for i in order), background, seed)


def _choose_kinds(rng: np.random.Generator, count: int) -> tuple[list[str], list[str]]:
    """Choose colours and shapes. In half of the scenes one shape occurs several times, for questions that count."""
    colours = [COLOURS[i] for i in rng.integers(len(COLOURS), size=count)]
    shapes = [FIGURES[i] for i in rng.integers(len(FIGURES), size=count)]
    if rng.random() < 0.5:
        favourite = FIGURES[rng.integers(len(FIGURES))]
        shapes = [favourite if rng.random() < 0.4 else shape for shape in shapes]
    return colours, shapes


def _make_figure(rng: np.random.Generator, shape: str, colour: str, total: int) -> Thing:
    size = int(rng.integers(20, 43 - 2 * total + 4)) // 2 * 2
    return Thing(shape, colour, 0.0, 0.0, size, size, angle=int(rng.integers(-3, 4)) * 5)


def _make_sign(rng: np.random.Generator, colour: str) -> Thing:
    writing = WRITINGS[int(rng.integers(len(WRITINGS)))]
    height = int(rng.integers(22, 27)) if len(writing) == 1 else int(rng.integers(18, 22))
    width = height if len(writing) == 1 else round(2.3 * height)
    return Thing(SIGN, colour, 0.0, 0.0, width, height, writing=writing)


def _place(rng: np.random.Generator, sketch: Thing, others: list[Thing]) -> Thing | None:
    """Move a thing to a free position inside the image; None if thirty tries find none."""
    half_width, half_height = sketch.width / 2, sketch.height / 2
    for _ in range(30):
        x = float(rng.integers(int(half_width) + 1, SIDE - int(half_width) - 1))
        y = float(rng.integers(int(half_height) + 1, SIDE - int(half_height) - 1))
        placed = Thing(sketch.shape, sketch.colour, x, y, sketch.width, sketch.height, sketch.angle, sketch.writing)
        if all(placed.overlap(other) <= MAX_OVERLAP for other in others):
            return placed
    return None
