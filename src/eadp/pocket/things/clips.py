"""Clips of 8 to 16 frames: a thing moves, appears, leaves or becomes another, or a sign shows a word for a moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from eadp.pocket.things import wording
from eadp.pocket.things.atlas import STYLES, font_count, kinds
from eadp.pocket.things.questions import fill, pick
from eadp.pocket.things.scene import SIDE, SIGN, SIGN_COLOURS, WORDS, Box, Scene, Split, Thing, make_scene
from eadp.pocket.things.view import name_of

SHORTEST, LONGEST = 8, 16
STEP = 5
"""Pixels that the thing that is asked about moves per frame."""

BYSTANDER_STEP = 2
"""Pixels that another thing moves per frame, in half of the clips."""

FRAMES_OF_A_SIGN = 2
FEWEST_FRAMES = 3
"""Frames before and after a change."""

DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


@dataclass(frozen=True)
class Clip:
    """A clip with a question about it.

    Attributes:
        frames: One scene per frame.
        event: What happens, one of `EVENTS`.
        question: The question.
        answer: The correct answer.
        boxes: Per frame, the box of the thing that the question is about; None where it is not in the image.
    """

    frames: tuple[Scene, ...]
    event: str
    question: str
    answer: str
    boxes: tuple[Box | None, ...]


Path = Sequence[Thing | None]
"""The thing that the question is about, per frame; None where it is not in the image."""


def make_clip(split: Split, index: int, frames: int | None = None) -> Clip:
    """Make clip number `index` of a split, from the scene of the same number.

    Args:
        split: The split.
        index: The number of the clip, from 0.
        frames: The number of frames, from SHORTEST to LONGEST; None for any of them, decided by the seed.

    Raises:
        ValueError: If the number of frames, the split or the index is wrong.
    """
    if frames is not None and not SHORTEST <= frames <= LONGEST:
        raise ValueError(f"a clip has {SHORTEST} to {LONGEST} frames, got {frames}")
    scene = make_scene(split, index)
    rng = np.random.default_rng((*scene.seed, 3))
    drawn = int(rng.integers(SHORTEST, LONGEST + 1))
    frames = drawn if frames is None else frames
    actor, others = _choose_actor(scene, rng)
    event = tuple(EVENTS)[int(rng.integers(len(EVENTS)))]
    path, question, answer = EVENTS[event](actor, others, split, rng, frames)
    bystander = rng.random() < 0.5
    across, down = tuple(DIRECTIONS.values())[int(rng.integers(4))]
    made, boxes = [], []
    for number, thing in enumerate(path):
        rest = list(others)
        if bystander and rest:
            shift = BYSTANDER_STEP * number
            rest[0] = replace(rest[0], x=rest[0].x + across * shift, y=rest[0].y + down * shift)
        # In front of all others, so that nothing hides what the question is about.
        frame = replace(scene, things=(*rest, thing) if thing is not None else tuple(rest))
        made.append(frame)
        boxes.append(None if thing is None else frame.box(len(rest)))
    return Clip(tuple(made), event, question, answer, tuple(boxes))


def _choose_actor(scene: Scene, rng: np.random.Generator) -> tuple[Thing, tuple[Thing, ...]]:
    """Choose a thing that is no sign, and return it and the things of other kinds."""
    candidates = [thing for thing in scene.things if thing.kind != SIGN]
    actor = candidates[int(rng.integers(len(candidates)))]
    return actor, tuple(thing for thing in scene.things if thing.kind != actor.kind)


def _moves(
    actor: Thing, others: tuple[Thing, ...], split: Split, rng: np.random.Generator, frames: int
) -> tuple[Path, str, str]:
    distance = STEP * (frames - 1)
    rooms = {
        "left": actor.x,
        "right": SIDE - actor.x - actor.width,
        "up": actor.y,
        "down": SIDE - actor.y - actor.height,
    }
    free = [direction for direction, room in rooms.items() if room >= distance]
    direction = pick(rng, free or [max(rooms, key=lambda each: rooms[each])])
    across, down = DIRECTIONS[direction]
    path = [replace(actor, x=actor.x + across * STEP * t, y=actor.y + down * STEP * t) for t in range(frames)]
    return path, fill(rng, wording.CLIP_MOVES, the=f"the {name_of(actor)}"), direction


def _appears(
    actor: Thing, others: tuple[Thing, ...], split: Split, rng: np.random.Generator, frames: int
) -> tuple[Path, str, str]:
    first = int(rng.integers(FEWEST_FRAMES, frames - FEWEST_FRAMES + 1))
    path: Path = [None] * first + [actor] * (frames - first)
    return path, fill(rng, wording.CLIP_APPEARS), name_of(actor)


def _leaves(
    actor: Thing, others: tuple[Thing, ...], split: Split, rng: np.random.Generator, frames: int
) -> tuple[Path, str, str]:
    last = int(rng.integers(FEWEST_FRAMES, frames - FEWEST_FRAMES + 1))
    path: Path = [actor] * last + [None] * (frames - last)
    return path, fill(rng, wording.CLIP_LEAVES), name_of(actor)


def _changes(
    actor: Thing, others: tuple[Thing, ...], split: Split, rng: np.random.Generator, frames: int
) -> tuple[Path, str, str]:
    taken = {actor.kind, *(thing.kind for thing in others)}
    kind = pick(rng, [number for number in range(len(kinds())) if number not in taken])
    styles = kinds()[kind].styles if split == "train" else STYLES
    changed = replace(actor, kind=kind, style=pick(rng, styles))
    first = int(rng.integers(FEWEST_FRAMES, frames - FEWEST_FRAMES + 1))
    path = [actor] * first + [changed] * (frames - first)
    if rng.random() < 0.5:
        return path, fill(rng, wording.CLIP_CHANGES_INTO, the=f"the {name_of(actor)}"), name_of(changed)
    return path, fill(rng, wording.CLIP_CHANGES_FROM, the=f"the {name_of(changed)}"), name_of(actor)


def _reads(
    actor: Thing, others: tuple[Thing, ...], split: Split, rng: np.random.Generator, frames: int
) -> tuple[Path, str, str]:
    taken = {thing.colour for thing in others}
    colour = pick(rng, [colour for colour in SIGN_COLOURS if colour not in taken])
    sign = Thing(SIGN, str(rng.integers(font_count())), int(rng.integers(22, 31)), word=pick(rng, WORDS), colour=colour)
    place = (int(rng.integers(0, SIDE - sign.width)), int(rng.integers(0, SIDE - sign.height)))
    sign = replace(sign, x=place[0], y=place[1])
    first = int(rng.integers(1, frames - FRAMES_OF_A_SIGN))
    path: Path = [None] * first + [sign] * FRAMES_OF_A_SIGN + [None] * (frames - first - FRAMES_OF_A_SIGN)
    return path, fill(rng, wording.CLIP_READS, colour=colour), sign.word


EventMaker = Callable[[Thing, tuple[Thing, ...], Split, np.random.Generator, int], tuple[Path, str, str]]
EVENTS: dict[str, EventMaker] = {
    "moves": _moves,
    "appears": _appears,
    "leaves": _leaves,
    "changes": _changes,
    "reads": _reads,
}
