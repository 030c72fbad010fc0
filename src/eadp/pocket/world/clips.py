"""Short clips: one thing moves, appears or changes its colour while the rest of the scene stays the same."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from eadp.pocket.world.scene import COLOURS, SIDE, Scene, Split, Thing, make_scene

EVENTS = ("moves", "appears", "changes")
STEP = 5
"""Pixels that a thing moves per frame."""

DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


@dataclass(frozen=True)
class Clip:
    """A clip with a question about it.

    Attributes:
        frames: One scene per frame, with the things in the same order.
        event: What happens, one of `EVENTS`.
        actor: The index of the thing that moves, appears or changes.
        question: The question.
        answer: The correct answer.
    """

    frames: tuple[Scene, ...]
    event: str
    actor: int
    question: str
    answer: str

    @property
    def boxes(self) -> tuple[tuple[float, float, float, float] | None, ...]:
        """The box of the actor in each frame; None before it appears."""
        return tuple(frame.things[self.actor].box if self.actor < len(frame.things) else None for frame in self.frames)


def make_clip(split: Split, index: int, frames: int = 8) -> Clip:
    """Make clip number `index` of a split, from the scene of the same number. The actor is the thing in front.

    Raises:
        ValueError: If there are fewer than two frames, or the split or the index is wrong.
    """
    if frames < 2:
        raise ValueError(f"a clip needs at least two frames, got {frames}")
    start = make_scene(split, index)
    rng = np.random.default_rng((*start.seed, 3))
    event = EVENTS[int(rng.integers(len(EVENTS)))]
    return {"moves": _moves, "appears": _appears, "changes": _changes}[event](start, rng, frames)


def _moves(start: Scene, rng: np.random.Generator, frames: int) -> Clip:
    actor = start.things[-1]
    distance = STEP * (frames - 1)
    margins = {
        "left": actor.x - actor.width / 2,
        "right": SIDE - actor.x - actor.width / 2,
        "up": actor.y - actor.height / 2,
        "down": SIDE - actor.y - actor.height / 2,
    }
    free = [each for each in DIRECTIONS if margins[each] > distance] or [max(margins, key=lambda each: margins[each])]
    direction = free[int(rng.integers(len(free)))]
    step = min(STEP, (margins[direction] - 1) / (frames - 1))
    across, down = DIRECTIONS[direction]
    path = [replace(actor, x=actor.x + across * step * t, y=actor.y + down * step * t) for t in range(frames)]
    question = f"In which direction does the {actor.colour} {actor.shape} move?"
    return _with_actor(start, path, "moves", question, direction)


def _appears(start: Scene, rng: np.random.Generator, frames: int) -> Clip:
    actor = start.things[-1]
    first = int(rng.integers(1, frames))
    path = [None] * first + [actor] * (frames - first)
    return _with_actor(start, path, "appears", "What appears in the clip?", f"{actor.colour} {actor.shape}")


def _changes(start: Scene, rng: np.random.Generator, frames: int) -> Clip:
    actor = start.things[-1]
    first = int(rng.integers(1, frames))
    others = [colour for colour in COLOURS if colour != actor.colour]
    colour = others[int(rng.integers(len(others)))]
    path = [actor] * first + [replace(actor, colour=colour)] * (frames - first)
    question = f"Which colour does the {actor.colour} {actor.shape} turn into?"
    return _with_actor(start, path, "changes", question, colour)


def _with_actor(start: Scene, path: list[Thing | None] | list[Thing], event: str, question: str, answer: str) -> Clip:
    rest = start.things[:-1]
    frames = tuple(replace(start, things=rest if actor is None else (*rest, actor)) for actor in path)
    return Clip(frames, event, len(rest), question, answer)
