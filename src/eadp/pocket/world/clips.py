"""Short clips: one thing moves, appears or changes its colour while the rest of the scene stays as it is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from eadp.pocket.world.scene import COLOURS, SIDE, Scene, Split, Thing, scene

EVENTS = ("moves", "appears", "changes")
STEP = 5
"""Pixels that a moving thing goes from frame to frame."""

WAYS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


@dataclass(frozen=True)
class Clip:
    """frames: what is there at each moment, things in the same order. actor: the number of the thing that acts."""

    frames: tuple[Scene, ...]
    event: str
    actor: int
    question: str
    answer: str

    @property
    def boxes(self) -> tuple[tuple[float, float, float, float] | None, ...]:
        """Where the actor is in each frame; None where it is not there yet."""
        return tuple(frame.things[self.actor].box if self.actor < len(frame.things) else None for frame in self.frames)


def clip(split: Split, index: int, frames: int = 8) -> Clip:
    """Clip number `index` of a split, on that split's scene of the same number. The actor is the thing in front."""
    if frames < 2:
        raise ValueError(f"a clip needs at least two frames, got {frames}")
    start = scene(split, index)
    rng = np.random.default_rng((*start.seed, 3))
    event = EVENTS[int(rng.integers(len(EVENTS)))]
    return {"moves": _moves, "appears": _appears, "changes": _changes}[event](start, rng, frames)


def _moves(start: Scene, rng: np.random.Generator, frames: int) -> Clip:
    actor = start.things[-1]
    reach = STEP * (frames - 1)
    room = {
        "left": actor.x - actor.width / 2,
        "right": SIDE - actor.x - actor.width / 2,
        "up": actor.y - actor.height / 2,
        "down": SIDE - actor.y - actor.height / 2,
    }
    free = [way for way in WAYS if room[way] > reach] or [max(room, key=lambda way: room[way])]
    way = free[int(rng.integers(len(free)))]
    step = min(STEP, (room[way] - 1) / (frames - 1))
    across, down = WAYS[way]
    path = [replace(actor, x=actor.x + across * step * t, y=actor.y + down * step * t) for t in range(frames)]
    question = f"In which direction does the {actor.colour} {actor.shape} move?"
    return _with_actor(start, path, "moves", question, way)


def _appears(start: Scene, rng: np.random.Generator, frames: int) -> Clip:
    actor = start.things[-1]
    moment = int(rng.integers(1, frames))
    path = [None] * moment + [actor] * (frames - moment)
    return _with_actor(start, path, "appears", "What appears in the clip?", f"{actor.colour} {actor.shape}")


def _changes(start: Scene, rng: np.random.Generator, frames: int) -> Clip:
    actor = start.things[-1]
    moment = int(rng.integers(1, frames))
    others = [colour for colour in COLOURS if colour != actor.colour]
    colour = others[int(rng.integers(len(others)))]
    path = [actor] * moment + [replace(actor, colour=colour)] * (frames - moment)
    question = f"Which colour does the {actor.colour} {actor.shape} turn into?"
    return _with_actor(start, path, "changes", question, colour)


def _with_actor(start: Scene, path: list[Thing | None] | list[Thing], event: str, question: str, answer: str) -> Clip:
    rest = start.things[:-1]
    frames = tuple(replace(start, things=rest if actor is None else (*rest, actor)) for actor in path)
    return Clip(frames, event, len(rest), question, answer)
