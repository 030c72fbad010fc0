"""Captions: what people write below a picture. CLIP's text encoder learns from whole captions alone.

Captions list things, say how they lie to each other, read signs, or answer a question. No caption says which of its
words point at something.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from eadp.pocket.things.questions import KINDS, make_question
from eadp.pocket.things.render import GRID, PATCH, Drawing
from eadp.pocket.things.scene import SIGN, Scene
from eadp.pocket.things.view import View
from eadp.pocket.things.wording import MASS, plural, with_article

OPENINGS = (
    "",
    "A picture of ",
    "An image of ",
    "This is ",
    "Here you can see ",
    "You can find ",
    "In this picture I have found ",
    "The image shows ",
    "We see ",
    "Look at this: ",
    "I can see ",
    "Someone has put together ",
    "This scene has in it ",
)
ENDINGS = {
    "plain": (" on a plain background", " on a background of one colour"),
    "cloudy": (" on a background of many colours", " in front of soft colours"),
    "noisy": (" on a rough background", " on something like sand"),
    "striped": (" on stripes", " on a background with a pattern"),
    "photo": (" on a photograph", " in front of a photo"),
}
RELATIONS = {
    "left": ("{one} is to the left of {two}.", "On the left is {one}, on the right is {two}.", "{one} left of {two}."),
    "above": ("{one} is above {two}.", "Below {one} is {two}.", "{one} at the top and {two} under it."),
}
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
LONGEST_LIST = 5
"""Things that a caption lists at most."""


def make_caption(view: View, rng: np.random.Generator) -> str:
    """Write a caption of what is clearly visible.

    Raises:
        ValueError: If nothing is.
    """
    if not view.clear:
        raise ValueError("a caption needs at least one thing that is clearly visible")
    turn = rng.random()
    if turn < 0.35:
        for kind in rng.permutation(len(KINDS))[:4]:
            question = make_question(view, rng, KINDS[kind])
            # A question that is answered "no" names what the picture does not show.
            if question is not None and "no" not in question.answer.split(", "):
                return f"{question.text} {question.answer[0].upper()}{question.answer[1:]}."
    if turn < 0.6 and len(view.unique) >= 2:
        return _relate(view, rng)
    return _list(view, rng)


def window_view(scene: Scene, drawing: Drawing, top: int, left: int, side: int) -> View:
    """Make the view of a window of side×side patches, whose upper left patch is (top, left).

    The window is a scene of its own: it has the things of which it shows at least a patch, moved by its corner.
    """
    patches = drawing.owners.reshape(GRID, GRID)[top : top + side, left : left + side]
    shown = [int(number) for number in np.unique(patches) if number >= 0]
    rows, columns = (slice(start * PATCH, (start + side) * PATCH) for start in (top, left))
    pixels = drawing.shown[rows, columns]
    shares = [float((pixels == number).sum()) / max(int(drawing.areas[number]), 1) for number in shown]
    moved = [
        replace(scene.things[number], x=scene.things[number].x - left * PATCH, y=scene.things[number].y - top * PATCH)
        for number in shown
    ]
    return View(Scene(tuple(moved), scene.ground, scene.seed, side * PATCH), shares)


def _list(view: View, rng: np.random.Generator) -> str:
    """List things: "A picture of an owl, two cats and a red sign that says STOP on a photograph."."""
    names = list(dict.fromkeys(view.names[i] for i in view.clear))
    chosen = [names[i] for i in rng.permutation(len(names))[:LONGEST_LIST]]
    parts = [_phrase(view, name, rng) for name in chosen]
    text = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    ending = ""
    if rng.random() < 0.3:
        ending = ENDINGS[view.scene.ground][int(rng.integers(2))]
    text = f"{OPENINGS[int(rng.integers(len(OPENINGS)))]}{text}{ending}."
    return text[0].upper() + text[1:]


def _phrase(view: View, name: str, rng: np.random.Generator) -> str:
    same = [i for i in view.clear if view.names[i] == name]
    thing = view.things[same[0]]
    if thing.kind == SIGN:
        reads = (f" that says {thing.word}", f" with the word {thing.word} on it", "")[int(rng.integers(3))]
        return with_article(name) + reads
    if len(same) == 1:
        return with_article(name)
    return name if name in MASS else f"{NUMBERS[min(len(same), len(NUMBERS) - 1)]} {plural(name)}"


def _relate(view: View, rng: np.random.Generator) -> str:
    """Say how two things lie to each other: the one further left or further up comes first."""
    pair = [view.unique[i] for i in rng.permutation(len(view.unique))[:2]]
    across, down = np.abs(view.centres[pair[0]] - view.centres[pair[1]])
    relation, axis = ("left", 0) if across >= down else ("above", 1)
    first, second = sorted(pair, key=lambda index: view.centres[index, axis])
    article = "the {}".format if rng.random() < 0.5 else with_article
    templates = RELATIONS[relation]
    one, two = article(view.names[first]), article(view.names[second])
    text = templates[int(rng.integers(len(templates)))].format(one=one, two=two)
    return text[0].upper() + text[1:]
