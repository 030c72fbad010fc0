"""Questions about a scene: varied wording, the right answer, and which things every word is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from eadp.pocket.world import wording
from eadp.pocket.world.scene import COLOURS, FIGURES, SHAPES, SIDE, SIGN, Scene, Thing

Box = tuple[float, float, float, float]

CLEAR = 12
"""Pixels that two places must lie apart, or a thing from the middle, before a question asks which side it is on."""

MOST_COUNTED = 4


@dataclass(frozen=True)
class Question:
    """kind: one of KINDS. about: numbers of the things that decide the answer (none where the asked thing is absent).
    pointers: (start, end) of every word of `text` that points at something in the scene, with the things it points at.
    """

    kind: str
    text: str
    answer: str
    about: tuple[int, ...]
    pointers: tuple[tuple[int, int, frozenset[int]], ...]

    def boxes(self, scene: Scene) -> tuple[Box, ...]:
        """Where the things that the question is about are."""
        return tuple(scene.things[number].box for number in self.about)


Asker = Callable[[Scene, np.random.Generator], "Question | None"]
References = dict[str, tuple[str | None, str | None]]
"""Slot of the template → colour and shape that fill it; None where it says neither."""

T = TypeVar("T")


def ask(scene: Scene, rng: np.random.Generator, kind: str) -> Question | None:
    """A question of one kind, or None if the scene does not allow any."""
    question = ASKERS[kind](scene, rng)
    return None if question is None else _dress(question, rng)


def ask_many(scene: Scene, rng: np.random.Generator, count: int) -> list[Question]:
    """`count` questions; kinds in turn from a random start, those that the scene does not allow left out."""
    start = int(rng.integers(len(KINDS)))
    questions: list[Question] = []
    for step in range(4 * count):
        question = ask(scene, rng, KINDS[(start + step) % len(KINDS)])
        if question is not None:
            questions.append(question)
        if len(questions) == count:
            break
    return questions


def _existence(scene: Scene, rng: np.random.Generator) -> Question | None:
    """Half of the time something that is there; else something that is not, mostly a near miss."""
    there = {(thing.colour, thing.shape) for thing in scene.things}
    if rng.random() < 0.5:
        thing = _pick(rng, scene.things)
        colour, shape, answer = thing.colour, thing.shape, "yes"
    else:
        colours = [thing.colour for thing in scene.things] if rng.random() < 0.7 else COLOURS
        shapes = [thing.shape for thing in scene.things] if rng.random() < 0.7 else SHAPES
        absent = [(colour, shape) for colour in colours for shape in shapes if (colour, shape) not in there]
        if not absent:
            return None
        (colour, shape), answer = _pick(rng, absent), "no"
    return _fill("existence", _pick(rng, wording.EXISTENCE), answer, scene, {"it": (colour, shape)})


def _colour(scene: Scene, rng: np.random.Generator) -> Question | None:
    shapes = _once([thing.shape for thing in scene.things])
    if not shapes:
        return None
    shape = _pick(rng, shapes)
    (number,) = _matching(scene, None, shape)
    answer = scene.things[number].colour
    return _fill("colour", _pick(rng, wording.COLOUR), answer, scene, {"it": (None, shape)})


def _shape(scene: Scene, rng: np.random.Generator) -> Question | None:
    colours = _once([thing.colour for thing in scene.things])
    if not colours:
        return None
    colour = _pick(rng, colours)
    (number,) = _matching(scene, colour, None)
    answer = scene.things[number].shape
    return _fill("shape", _pick(rng, wording.SHAPE), answer, scene, {"it": (colour, None)})


def _count(scene: Scene, rng: np.random.Generator) -> Question | None:
    """Mostly a shape that comes several times."""
    shapes = [thing.shape for thing in scene.things if thing.shape in FIGURES]
    several = [shape for shape in shapes if shapes.count(shape) > 1]
    shapes = several if several and rng.random() < 0.7 else shapes
    if not shapes:
        return None
    shape = _pick(rng, shapes)
    count = len(_matching(scene, None, shape))
    if count > MOST_COUNTED:
        return None
    return _fill("count", _pick(rng, wording.COUNT), str(count), scene, {"it": (None, shape)})


def _side(scene: Scene, rng: np.random.Generator) -> Question | None:
    thing = _pick(rng, scene.things)
    if not _named(scene, thing):
        return None
    templates, offset, names = (
        (wording.SIDE_ACROSS, thing.x - SIDE / 2, ("left", "right"))
        if rng.random() < 0.5
        else (wording.SIDE_DOWN, thing.y - SIDE / 2, ("top", "bottom"))
    )
    if abs(offset) < CLEAR:
        return None
    answer = names[int(offset > 0)]
    return _fill("side", _pick(rng, templates), answer, scene, {"it": (thing.colour, thing.shape)})


def _relation(scene: Scene, rng: np.random.Generator) -> Question | None:
    if len(scene.things) < 2:
        return None
    first, second = (scene.things[i] for i in rng.permutation(len(scene.things))[:2])
    if not (_named(scene, first) and _named(scene, second)):
        return None
    templates, offset, names = (
        (wording.RELATION_ACROSS, first.x - second.x, ("left", "right"))
        if rng.random() < 0.5
        else (wording.RELATION_DOWN, first.y - second.y, ("above", "below"))
    )
    if abs(offset) < CLEAR:
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
    """Two questions in one, answered in their order."""
    askers = [_existence, _colour, _shape, _side, _reading]
    first, second = (askers[i](scene, rng) for i in rng.permutation(len(askers))[:2])
    if first is None or second is None:
        return None
    opening, joint = first.text.rstrip("?."), ", and "
    shift = len(opening) + len(joint)
    moved = tuple((start + shift, end + shift, things) for start, end, things in second.pointers)
    text = opening + joint + second.text[0].lower() + second.text[1:]
    about = tuple(sorted({*first.about, *second.about}))
    return Question("double", text, f"{first.answer}, {second.answer}", about, first.pointers + moved)


ASKERS: dict[str, Asker] = {
    "existence": _existence,
    "colour": _colour,
    "shape": _shape,
    "count": _count,
    "side": _side,
    "relation": _relation,
    "reading": _reading,
    "double": _double,
}
KINDS = tuple(ASKERS)


def _pick(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]


def _once(values: list[str]) -> list[str]:
    return [value for value in values if values.count(value) == 1]


def _matching(scene: Scene, colour: str | None, shape: str | None) -> frozenset[int]:
    return frozenset(
        number
        for number, thing in enumerate(scene.things)
        if colour in (None, thing.colour) and shape in (None, thing.shape)
    )


def _named(scene: Scene, thing: Thing) -> bool:
    """Whether colour and shape together name this thing alone."""
    return len(_matching(scene, thing.colour, thing.shape)) == 1


def _fill(kind: str, template: str, answer: str, scene: Scene, references: References) -> Question:
    """Put the references into the template. A colour word points at all things of that colour, the noun after it at
    the things that the two name together; a noun that nothing in the scene answers to points nowhere."""
    text, about = "", set[int]()
    pointers: list[tuple[int, int, frozenset[int]]] = []
    for piece in wording.pieces(template):
        if piece not in references:
            text += piece
            continue
        colour, shape = references[piece]
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


def _dress(question: Question, rng: np.random.Generator) -> Question:
    """In a third of the questions, the long instructions that people wrap around them."""
    if rng.random() > 0.35:
        return question
    if rng.random() < 0.5:
        before = _pick(rng, wording.BEFORE) + " "
        pointers = tuple((start + len(before), end + len(before), things) for start, end, things in question.pointers)
        return replace(question, text=before + question.text, pointers=pointers)
    return replace(question, text=f"{question.text} {_pick(rng, wording.AFTER)}")
