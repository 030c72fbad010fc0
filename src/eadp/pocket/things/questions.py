"""Questions about scenes of things in free English, with their answers and the things that they are about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import numpy as np

from eadp.pocket.things import wording
from eadp.pocket.things.atlas import kinds
from eadp.pocket.things.scene import SIDE, SIGN, SMALL, Box, Scene
from eadp.pocket.things.view import MARGIN, View, best

BESIDE = 60
"""Largest distance in pixels between the centres of a thing and what is next to it."""

WRAPPED = 0.4
"""Share of the questions that are wrapped in an instruction."""

MOST_COUNTED = 6
NEAR_COLOURS = 12
"""Absent things that are near misses by colour are chosen from this many kinds."""


@dataclass(frozen=True)
class Question:
    """A question about a scene.

    Attributes:
        kind: One of `KINDS`.
        text: The question.
        answer: The correct answer. Several answers are separated by commas.
        about: Indices of the things that the question names or that decide its answer; empty if they are absent.
        dense: Whether the question is long: several questions in one, or wrapped in an instruction.
    """

    kind: str
    text: str
    answer: str
    about: tuple[int, ...]
    dense: bool = False

    def boxes(self, scene: Scene) -> tuple[Box, ...]:
        """Return the boxes of the things that the question is about."""
        return tuple(scene.box(index) for index in self.about)


QuestionMaker = Callable[[View, np.random.Generator], "Question | None"]
T = TypeVar("T")


def make_question(view: View, rng: np.random.Generator, kind: str, wrapped: float = WRAPPED) -> Question | None:
    """Make a question of one kind; None if the scene does not allow the question that was drawn.

    Args:
        view: What can be asked about the scene.
        rng: The source of all choices.
        kind: The kind, one of `KINDS`.
        wrapped: The share of questions that are wrapped in an instruction.

    Raises:
        ValueError: If there is no such kind.
    """
    if kind not in QUESTION_MAKERS:
        raise ValueError(f"unknown kind of question {kind!r}; there are {', '.join(KINDS)}")
    question = QUESTION_MAKERS[kind](view, rng)
    return None if question is None else _add_instructions(question, rng, wrapped)


def make_questions(view: View, rng: np.random.Generator, count: int) -> list[Question]:
    """Make at most `count` questions. Kinds take turns from a random start; some are skipped if a scene allows few."""
    start = int(rng.integers(len(KINDS)))
    questions: list[Question] = []
    for step in range(4 * count):
        question = make_question(view, rng, KINDS[(start + step) % len(KINDS)])
        if question is not None:
            questions.append(question)
        if len(questions) == count:
            break
    return questions


def _existence(view: View, rng: np.random.Generator) -> Question | None:
    """Ask half of the time about a thing of the scene, else about an absent one, mostly a near miss."""
    if rng.random() < 0.5:
        return _ask_present(view, rng, "existence", [i for i in view.clear if view.things[i].kind != SIGN])
    return _ask_absent(view, rng, "existence", view.clear)


def _small(view: View, rng: np.random.Generator) -> Question | None:
    """Ask about a small thing: whether there is one, whether there is a near miss of it, or which is the smallest."""
    small = [i for i in view.clear if view.things[i].kind != SIGN and view.things[i].size < SMALL]
    turn = rng.random()
    if turn < 0.4:
        return _ask_present(view, rng, "small", small)
    if turn < 0.8:
        return _ask_absent(view, rng, "small", small)
    sizes = [(-view.things[i].size, i) for i in view.noticed if view.things[i].kind != SIGN]
    smallest = best(sizes, margin=4)
    if smallest not in view.clear or view.things[smallest].size >= SMALL:
        return None
    return Question("small", pick(rng, wording.SMALLEST), view.names[smallest], (smallest,))


def _ask_present(view: View, rng: np.random.Generator, kind: str, indices: list[int]) -> Question | None:
    if not indices:
        return None
    name = view.names[pick(rng, indices)]
    about = tuple(i for i in view.noticed if view.names[i] == name)
    return Question(kind, fill(rng, wording.EXISTENCE, a=wording.with_article(name)), "yes", about)


def _ask_absent(view: View, rng: np.random.Generator, kind: str, near: list[int]) -> Question | None:
    """Ask about an absent thing: similar to one of `near` by category or by colour, or any."""
    present = {thing.kind for thing in view.things}
    models = [view.things[i].kind for i in near if view.things[i].kind != SIGN]
    if not models:
        return None
    model, turn = pick(rng, models), rng.random()
    if turn < 0.4:
        candidates = [k for k, other in enumerate(kinds()) if other.category == kinds()[model].category]
    elif turn < 0.8:
        candidates = list(_similar_colours(model))
    else:
        candidates = list(range(len(kinds())))
    absent = [candidate for candidate in candidates if candidate not in present]
    if not absent:
        return None
    name = kinds()[pick(rng, absent)].name
    return Question(kind, fill(rng, wording.EXISTENCE, a=wording.with_article(name)), "no", ())


def _count(view: View, rng: np.random.Generator) -> Question | None:
    """Count the things of one kind, mostly one that occurs several times, or of one category."""
    groups = _groups_shown(view)
    if groups and rng.random() < 0.3:
        _, many, categories = wording.GROUPS[pick(rng, groups)]
        counted = [i for i, thing in enumerate(view.things) if thing.category in categories]
    else:
        names = [view.names[i] for i in view.clear if view.things[i].kind != SIGN and view.names[i] not in wording.MASS]
        several = [name for name in names if names.count(name) > 1]
        names = several if rng.random() < 0.75 else names
        if not names:
            return None
        name = pick(rng, names)
        many, counted = wording.plural(name), [i for i, other in enumerate(view.names) if other == name]
    if not 0 < len(counted) <= MOST_COUNTED or not view.all_clear(counted):
        return None
    return Question("count", fill(rng, wording.COUNT, many=many), str(len(counted)), tuple(counted))


def _side(view: View, rng: np.random.Generator) -> Question | None:
    if not view.unique:
        return None
    index = pick(rng, view.unique)
    axis = int(rng.integers(2))
    offset = view.centres[index, axis] - view.side / 2
    if abs(offset) < MARGIN:
        return None
    templates, answers = ((wording.SIDE_ACROSS, ("left", "right")), (wording.SIDE_DOWN, ("top", "bottom")))[axis]
    text = fill(rng, templates, the=f"the {view.names[index]}")
    return Question("side", text, answers[int(offset > 0)], (index,))


def _relation(view: View, rng: np.random.Generator) -> Question | None:
    if len(view.unique) < 2:
        return None
    one, two = (view.unique[i] for i in rng.permutation(len(view.unique))[:2])
    axis = int(rng.integers(2))
    offset = view.centres[one, axis] - view.centres[two, axis]
    if abs(offset) < MARGIN:
        return None
    choices = ((wording.RELATION_ACROSS, ("left", "right")), (wording.RELATION_DOWN, ("above", "below")))
    templates, answers = choices[axis]
    text = fill(rng, templates, the=f"the {view.names[one]}", other=f"the {view.names[two]}")
    return Question("relation", text, answers[int(offset > 0)], (one, two))


def _place(view: View, rng: np.random.Generator) -> Question | None:
    """Ask for the thing that is furthest to a side of the image."""
    place = pick(rng, list(wording.PLACES))
    index = view.furthest(view.noticed, place)
    if index not in view.clear:
        return None
    text = fill(rng, wording.PLACE, where=pick(rng, wording.PLACES[place]))
    return Question("place", text, view.names[index], (index,))


def _nearest(view: View, rng: np.random.Generator) -> Question | None:
    if not view.unique:
        return None
    anchor = pick(rng, view.unique)
    found = best([(-view.distance(anchor, i), i) for i in view.noticed if i != anchor])
    if found not in view.clear or view.distance(anchor, found) > BESIDE * view.side / SIDE:
        return None
    text = fill(rng, wording.NEAREST, the=f"the {view.names[anchor]}")
    return Question("nearest", text, view.names[found], (anchor, found))


def _direction(view: View, rng: np.random.Generator) -> Question | None:
    """Ask what is left of, right of, above or below a thing: the nearest of those within 45° of that direction."""
    if not view.unique:
        return None
    anchor = pick(rng, view.unique)
    where = pick(rng, list(wording.DIRECTIONS))
    axis, sign = (0 if where in ("left", "right") else 1), (1 if where in ("right", "below") else -1)
    candidates = []
    for index in view.noticed:
        away = view.centres[index] - view.centres[anchor]
        if index != anchor and sign * away[axis] > abs(away[1 - axis]):
            candidates.append((-view.distance(anchor, index), index))
    found = best(candidates)
    if found not in view.clear:
        return None
    text = fill(rng, wording.DIRECTION, the=f"the {view.names[anchor]}", where=wording.DIRECTIONS[where])
    return Question("direction", text, view.names[found], (anchor, found))


def _between(view: View, rng: np.random.Generator) -> Question | None:
    """Ask for the only thing near the line from one thing to another."""
    pairs = [(one, two) for one in view.unique for two in view.unique if one != two]
    for pair in rng.permutation(len(pairs)):
        one, two = pairs[pair]
        found = _only_between(view, one, two)
        if found in view.clear:
            text = fill(rng, wording.BETWEEN, the=f"the {view.names[one]}", other=f"the {view.names[two]}")
            return Question("between", text, view.names[found], (one, two, found))
    return None


def _only_between(view: View, one: int, two: int) -> int | None:
    """Return the only thing in the middle three fifths of a line, unless another one is almost between, too."""
    line = view.centres[two] - view.centres[one]
    length = float(line @ line)
    if length < (3 * MARGIN) ** 2:
        return None
    found = []
    for index in view.noticed:
        if index in (one, two):
            continue
        away = view.centres[index] - view.centres[one]
        along = float(away @ line) / length
        aside = abs(float(line[0] * away[1] - line[1] * away[0])) / length**0.5
        if 0.2 <= along <= 0.8 and aside <= MARGIN:
            found.append(index)
        elif 0 < along < 1 and aside <= 2.5 * MARGIN:
            return None
    return found[0] if len(found) == 1 else None


def _odd(view: View, rng: np.random.Generator) -> Question | None:
    """Ask for the only thing that is not of the category of all others; signs do not count."""
    indices = [i for i, thing in enumerate(view.things) if thing.kind != SIGN]
    if len(indices) < 4 or not view.all_clear(indices):
        return None
    categories = [_broad(view.things[i].category) for i in indices]
    odd = [i for i, category in zip(indices, categories, strict=True) if categories.count(category) == 1]
    if len(set(categories)) != 2 or len(odd) != 1:
        return None
    return Question("odd", pick(rng, wording.ODD), view.names[odd[0]], (odd[0],))


def _group(view: View, rng: np.random.Generator) -> Question | None:
    """Ask which animal, fruit, … there is, or which of several is furthest to a side."""
    groups = _groups_shown(view)
    if not groups:
        return None
    one, many, categories = wording.GROUPS[pick(rng, groups)]
    members = [i for i in view.noticed if view.things[i].category in categories]
    if len(members) == 1:
        if not view.all_clear(members):
            return None
        return Question("group", fill(rng, wording.GROUP, group=one), view.names[members[0]], tuple(members))
    place = pick(rng, list(wording.PLACES))
    found = view.furthest(members, place)
    if found not in view.clear:
        return None
    where = pick(rng, wording.PLACES[place])
    text = fill(rng, wording.GROUP_PLACE, group=one, groups=many, where=where)
    return Question("group", text, view.names[found], tuple(members))


def _reading(view: View, rng: np.random.Generator) -> Question | None:
    signs = [i for i in view.clear if view.things[i].kind == SIGN]
    if not signs:
        return None
    sign = pick(rng, signs)
    alone = sum(thing.kind == SIGN for thing in view.things) == 1
    name = "the sign" if alone and rng.random() < 0.5 else f"the {view.names[sign]}"
    return Question("reading", fill(rng, wording.READING, the=name), view.things[sign].word, (sign,))


def _several(view: View, rng: np.random.Generator) -> Question | None:
    """Join two or three questions into one, with as many answers in the same order."""
    makers = (_existence, _count, _side, _reading, _relation)
    count = 2 if rng.random() < 0.6 else 3
    parts = [makers[i](view, rng) for i in rng.permutation(len(makers))[:count]]
    made = [part for part in parts if part is not None]
    if len(made) < count:
        return None
    text = made[0].text
    for part in made[1:]:
        text = f"{text.rstrip('?.')}, and {part.text[0].lower()}{part.text[1:]}"
    about = tuple(sorted({index for part in made for index in part.about}))
    return Question("several", text, ", ".join(part.answer for part in made), about, dense=True)


QUESTION_MAKERS: dict[str, QuestionMaker] = {
    "existence": _existence,
    "small": _small,
    "count": _count,
    "side": _side,
    "relation": _relation,
    "place": _place,
    "nearest": _nearest,
    "direction": _direction,
    "between": _between,
    "odd": _odd,
    "group": _group,
    "reading": _reading,
    "several": _several,
}
KINDS = tuple(QUESTION_MAKERS)


def _groups_shown(view: View) -> list[str]:
    """Return the groups of which the scene shows a member."""
    shown = {view.things[i].category for i in view.noticed}
    return [name for name, (_, _, categories) in wording.GROUPS.items() if shown & set(categories)]


def _broad(category: str) -> str:
    """Return the group that a category belongs to: a bird is an animal."""
    return "animal" if category in wording.GROUPS["animal"][2] else category


@cache
def _similar_colours(kind: int) -> tuple[int, ...]:
    """Return the kinds whose mean colour is most similar."""
    colours = np.array([other.colour for other in kinds()])
    order = np.argsort(np.abs(colours - colours[kind]).sum(1), kind="stable")
    return tuple(int(other) for other in order if other != kind)[:NEAR_COLOURS]


def pick(rng: np.random.Generator, choices: Sequence[T]) -> T:
    """Choose one of some choices."""
    return choices[int(rng.integers(len(choices)))]


def fill(rng: np.random.Generator, templates: Sequence[str], **slots: str) -> str:
    """Choose a template and fill its slots. The result starts with a capital letter."""
    text = pick(rng, templates).format(**slots)
    return text[0].upper() + text[1:]


def _add_instructions(question: Question, rng: np.random.Generator, wrapped: float) -> Question:
    """Add an instruction before, after, or around a share of the questions, as people do."""
    turn = rng.random()
    if turn > wrapped:
        return question
    before = f"{pick(rng, wording.BEFORE)} " if turn < 0.625 * wrapped else ""
    after = f" {pick(rng, wording.AFTER)}" if turn > 0.375 * wrapped else ""
    return replace(question, text=before + question.text + after, dense=True)
