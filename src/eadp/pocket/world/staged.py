"""Clips that are staged to show how a method spends its tokens over time, with the frames that matter."""

from __future__ import annotations

from dataclasses import dataclass, replace

from eadp.pocket.world.scene import SIDE, Scene, Thing

FRAMES = 16
SEED = (2, 0)
"""The seed of the ground, which is the same in all frames."""

PAN = 6
"""Pixels that the camera moves per frame."""

ROOM = (
    Thing("square", "blue", 28, 34, 26, 26),
    Thing("circle", "green", 98, 30, 24, 24),
    Thing("triangle", "orange", 34, 98, 28, 28),
)
"""Things that are there all the time."""

STAR = Thing("star", "red", 96, 92, 30, 30)
HEART = Thing("heart", "yellow", 64, 64, 28, 28)


@dataclass(frozen=True)
class StagedClip:
    """A clip with a question, and the frames that answer it.

    Attributes:
        name: A short name.
        frames: One scene per frame.
        question: The question.
        answering: The frames in which the thing in question can be seen; empty if it is there all the time.
    """

    name: str
    frames: tuple[Scene, ...]
    question: str
    answering: range


def staged_clips() -> list[StagedClip]:
    """Make the clips: a still camera, a panning camera, one event, and two events of which one is in question."""
    once, twice = range(7, 10), range(11, 14)
    first = range(2, 5)
    wide = (*ROOM, *(replace(each, x=each.x + SIDE, colour="purple") for each in ROOM))
    panning = tuple(_scene(_visible(tuple(replace(each, x=each.x - PAN * t) for each in wide))) for t in range(FRAMES))
    return [
        StagedClip("still", (_scene(ROOM),) * FRAMES, "What colour is the circle?", range(0)),
        StagedClip("panning", panning, "What can be seen?", range(0)),
        StagedClip("one event", _with_events({once: STAR}), "Is there a red star?", once),
        StagedClip("two events", _with_events({first: STAR, twice: HEART}), "Is there a yellow heart?", twice),
    ]


def _visible(things: tuple[Thing, ...]) -> tuple[Thing, ...]:
    """Leave out what the edge of the image would cut."""
    return tuple(each for each in things if each.width / 2 <= each.x <= SIDE - each.width / 2)


def _scene(things: tuple[Thing, ...]) -> Scene:
    return Scene(things, "plain", SEED)


def _with_events(events: dict[range, Thing]) -> tuple[Scene, ...]:
    """Show each thing in its frames, in front of the room."""
    return tuple(_scene((*ROOM, *(thing for shown, thing in events.items() if t in shown))) for t in range(FRAMES))
