"""What can be asked about a scene: which of its things are visible, how they are named, and where they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eadp.pocket.things.scene import SIGN, Scene, Thing

ASKED = 0.5
"""A thing is asked about, or is an answer, only if at least this share of it is visible."""

NOTICED = 0.1
"""A thing of which less than this share is visible counts as absent from the image for every question but existence."""

MARGIN = 12
"""Pixels by which a thing must be further left, nearer, … than any other, for a question whose answer depends on it."""


class View:
    """What can be asked about a scene.

    Args:
        scene: The scene.
        visible: Per thing, the share that is visible.
    """

    def __init__(self, scene: Scene, visible: Sequence[float] | NDArray[np.float64]) -> None:
        self.scene, self.side = scene, scene.side
        self.things = scene.things
        self.noticed = [i for i, share in enumerate(visible) if share >= NOTICED]
        self.clear = [i for i, share in enumerate(visible) if share >= ASKED]
        self.names = [name_of(thing) for thing in scene.things]
        self.unique = [i for i in self.clear if self.names.count(self.names[i]) == 1]
        self.centres = np.array([thing.centre for thing in scene.things]).reshape(-1, 2)

    def all_clear(self, indices: Sequence[int]) -> bool:
        """Whether all of these things are visible enough to be asked about."""
        return all(index in self.clear for index in indices)

    def furthest(self, indices: Sequence[int], place: str) -> int | None:
        """Return the thing that is furthest to a side, if it is so by `MARGIN`."""
        axis = 0 if place in ("left", "right") else 1
        sign = 1 if place in ("right", "bottom") else -1
        return best([(sign * self.centres[i, axis], i) for i in indices])

    def distance(self, one: int, two: int) -> float:
        """Return the distance in pixels between the centres of two things."""
        return float(np.hypot(*(self.centres[one] - self.centres[two])))


def name_of(thing: Thing) -> str:
    """Return how a question names a thing: "duck", "red sign"."""
    return f"{thing.colour} {thing.name}" if thing.kind == SIGN else thing.name


def best(scored: Sequence[tuple[float, int]], margin: float = MARGIN) -> int | None:
    """Return the index with the highest score, if it is higher than all others by a margin."""
    ranked = sorted(scored, reverse=True)
    if not ranked or (len(ranked) > 1 and ranked[0][0] - ranked[1][0] < margin):
        return None
    return ranked[0][1]
