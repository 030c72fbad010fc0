"""Questions about a scene, with varied wording, their answers, and the things that each word names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from eadp.pocket.world import wording
from eadp.pocket.world.scene import COLOURS, FIGURES, SHAPES, SIDE, SIGN, Scene, Thing

Box = tuple[float, float, float, float]

MIN_OFFSET = 12
"""Smallest distance in pixels between two things, or of a thing from the middle, for a question about its side."""

MAX_COUNT = 4
"""Largest number that is the answer to a question."""


@dataclass(frozen=True)
class Question:
    """A question about a scene.

    Attributes:
        kind: One of `KINDS`.
        text: The question.
        answer: The correct answer.
        about: Indices of the things that decide the answer; empty if the thing is not in the scene.
        pointers: Start and end in `text` of every word that names things in the scene, with the indices of the things.
    """

    kind: str
    text: str
    answer: str
    about: tuple[int, ...]
    pointers: tuple[tuple[int, int, frozenset[int]], ...]

    def boxes(self, scene: Scene) -> tuple[Box, ...]:
        """Return the boxes of the things that the question is about."""
        return tuple(scene.things[index].box for index in self.about)


QuestionMaker = Callable[[Scene, np.random.Generator], "Question | None"]
References = dict[str, tuple[str | None, str | None]]
"""For each slot of a template, the colour and the shape that fill it; None for one that is not mentioned."""

T = TypeVar("T")


def make_question(scene: Scene, rng: np.random.Generator, kind: str) -> Question | None:
    """Make a question of one kind; None if the scene does not allow it."""
    question = QUESTION_MAKERS[kind](scene, rng)
    return None if question is None else _add_instructions(question, rng)


def make_questions(scene: Scene, rng: np.random.Generator, count: int) -> list[Question]:
    """Make `count` questions. Kinds take turns from a random start; those that the scene does not allow are skipped."""
    start = int(rng.integers(len(KINDS)))
    questions: list[Question] = []
    for step in range(4 * count):
        question = make_question(scene, rng, KINDS[(start + step) % len(KINDS)])
        if question is not None:
            questions.append(question)
        if len(questions) == count:
            break
    return questions


def _existence(scene: Scene, rng: np.random.Generator) -> Question | None:
    """Ask half of the time about something in the scene, else about something absent, mostly similar to a thing."""
    present = {(thing.colour, thing.shape) for thing in scene.things}
    if rng.random() < 0.5:
        thing = _pick(rng, scene.things)
        colour, shape, answer = thing.colour, thing.shape, "yes"
    else:
        colours = [thing.colour for thing in scene.things] if rng.random() < 0.7 else COLOURS
        shapes = [thing.shape for thing in scene.things] if rng.random() < 0.7 else SHAPES
        absent = [(colour, shape) for colour in colours for shape in shapes if (colour, shape) not in present]
        if not absent:
            return None
        (colour, shape), answer = _pick(rng, absent), "no"
    return _fill("existence", _pick(rng, wording.EXISTENCE), answer, scene, {"it": (colour, shape)})


def _colour(scene: Scene, rng: np.random.Generator) -> Question | None:
    shapes = _unique([thing.shape for thing in scene.things])
    if not shapes:
        return None
    shape = _pick(rng, shapes)
    (index,) = _matching(scene, None, shape)
    answer = scene.things[index].colour
    return _fill("colour", _pick(rng, wording.COLOUR), answer, scene, {"it": (None, shape)})


def _shape(scene: Scene, rng: np.random.Generator) -> Question | None:
    colours = _unique([thing.colour for thing in scene.things])
    if not colours:
        return None
    colour = _pick(rng, colours)
    (index,) = _matching(scene, colour, None)
    answer = scene.things[index].shape
    return _fill("shape", _pick(rng, wording.SHAPE), answer, scene, {"it": (colour, None)})


def _count(scene: Scene, rng: np.random.Generator) -> Question | None:
    """Ask mostly about a shape that occurs several times."""
    shapes = [thing.shape for thing in scene.things if thing.shape in FIGURES]
    several = [shape for shape in shapes if shapes.count(shape) > 1]
    shapes = several if several and rng.random() < 0.7 else shapes
    if not shapes:
        return None
    shape = _pick(rng, shapes)
    count = len(_matching(scene, None, shape))
    if count > MAX_COUNT:
        return None
    return _fill("count", _pick(rng, wording.COUNT), str(count), scene, {"it": (None, shape)})


def _side(scene: Scene, rng: np.random.Generator) -> Question | None:
    thing = _pick(rng, scene.things)
    if not _is_unambiguous(scene, thing):
        return None
    templates, offset, names = (
        (wording.SIDE_ACROSS, thing.x - SIDE / 2, ("left", "right"))
        if rng.random() < 0.5
        else (wording.SIDE_DOWN, thing.y - SIDE / 2, ("top", "bottom"))
    )
    if abs(offset) < MIN_OFFSET:
        return None
    answer = names[int(offset > 0)]
    return _fill("side", _pick(rng, templates), answer, scene, {"it": (thing.colour, thing.shape)})


def _relation(scene: Scene, rng: np.random.Generator) -> Question | None:
    if len(scene.things) < 2:
        return None
    first, second = (scene.things[i] for i in rng.permutation(len(scene.things))[:2])
    if not (_is_unambiguous(scene, first) and _is_unambiguous(scene, second)):
        return None
    templates, offset, names = (
        (wording.RELATION_ACROSS, first.x - second.x, ("left", "right"))
        if rng.random() < 0.5
        else (wording.RELATION_DOWN, first.y - second.y, ("above", "below"))
    )
    if abs(offset) < MIN_OFFSET:
        return None
    answer = names[int(offset > 0)]
    references = {"it": (first.colour, first.shape), "other": (second.colour, second.shape)}
    return _fill("relation", _pick(rng, templates), answer, scene, references)


def _reading(scene: Scene, rng: np.random.Generator) -> Question | None:
    signs = [thing for thing in scene.things if thing.shape == SIGN]
    if not signs:
        return None
    sign = _pick(rng, signs)
    plain = len(signs) == 1 and rng.random() < 0.5
    references: References = {"it": (None if plain else sign.colour, SIGN)}
    return _fill("reading", _pick(rng, wording.READING), sign.writing or "", scene, references)


def _double(scene: Scene, rng: np.random.Generator) -> Question | None:
    """Join two questions into one, with two answers in the same order."""
    makers = [_existence, _colour, _shape, _side, _reading]
    first, second = (makers[i](scene, rng) for i in rng.permutation(len(makers))[:2])
    if first is None or second is None:
        return None
    opening, joint = first.text.rstrip("?."), ", and "
    shift = len(opening) + len(joint)
    moved = tuple((start + shift, end + shift, things) for start, end, things in second.pointers)
    text = opening + joint + second.text[0].lower() + second.text[1:]
    about = tuple(sorted({*first.about, *second.about}))
    return Question("double", text, f"{first.answer}, {second.answer}", about, first.pointers + moved)


QUESTION_MAKERS: dict[str, QuestionMaker] = {
    "existence": _existence,
    "colour": _colour,
    "shape": _shape,
    "count": _count,
    "side": _side,
    "relation": _relation,
    "reading": _reading,
    "double": _double,
}
KINDS = tuple(QUESTION_MAKERS)


def _pick(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]


def _unique(values: list[str]) -> list[str]:
    return [value for value in values if values.count(value) == 1]


def _matching(scene: Scene, colour: str | None, shape: str | None) -> frozenset[int]:
    return frozenset(
        index
        for index, thing in enumerate(scene.things)
        if colour in (None, thing.colour) and shape in (None, thing.shape)
    )


def _is_unambiguous(scene: Scene, thing: Thing) -> bool:
    """Whether no other thing has the same colour and shape."""
    return len(_matching(scene, thing.colour, thing.shape)) == 1


def _fill(kind: str, template: str, answer: str, scene: Scene, references: References) -> Question:
    """Fill a template with its references.

    A colour word names all things of that colour. The noun after it names the things that match both words, or nothing.
    """
    text, about = "", set[int]()
    pointers: list[tuple[int, int, frozenset[int]]] = []
    for segment in wording.split_template(template):
        if segment not in references:
            text += segment
            continue
        colour, shape = references[segment]
        named = _matching(scene, colour, shape)
        about |= named
        if colour == "orange" and text.endswith(" a "):
            text = f"{text[:-1]}n "
        noun = wording.noun(shape, plural=kind == "count")
        for word, things in ((colour, _matching(scene, colour, None)), (noun, named)):
            if word is not None:
                gap = " " if word == noun and colour else ""
                pointers.append((len(text) + len(gap), len(text) + len(gap) + len(word), things))
                text += gap + word
    return Question(kind, text, answer, tuple(sorted(about)), tuple(pointers))


def _add_instructions(question: Question, rng: np.random.Generator) -> Question:
    """Add an instruction before or after about a third of the questions, as people do."""
    if rng.random() > 0.35:
        return question
    if rng.random() < 0.5:
        before = _pick(rng, wording.BEFORE) + " "
        pointers = tuple((start + len(before), end + len(before), things) for start, end, things in question.pointers)
        return replace(question, text=before + question.text, pointers=pointers)
    return replace(question, text=f"{question.text} {_pick(rng, wording.AFTER)}")
