"""The samples of the world of things: images with questions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from eadp.pocket.samples import Sample
from eadp.pocket.things.questions import KINDS, make_question
from eadp.pocket.things.render import render
from eadp.pocket.things.scene import Split, make_scene
from eadp.pocket.things.view import View

QUESTIONS_PER_SCENE = 3


def samples(split: Split, total: int, kinds: tuple[str, ...] = KINDS) -> Iterator[Sample]:
    """Generate questions of a split, always the same ones.

    Args:
        split: The split.
        total: Number of questions.
        kinds: The kinds of questions, which take turns.

    Yields:
        The samples, at most `QUESTIONS_PER_SCENE` per scene. A kind that a scene does not allow is asked about the next
        scene that does.

    Raises:
        ValueError: If a kind is unknown.
    """
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ValueError(f"unknown kinds of question {unknown}; there are {', '.join(KINDS)}")
    made = 0
    for index in count():
        scene = make_scene(split, index)
        drawing = render(scene)
        view, rng = View(scene, drawing.visible), np.random.default_rng((*scene.seed, 2))
        for _ in range(QUESTIONS_PER_SCENE):
            if made == total:
                return
            question = make_question(view, rng, kinds[made % len(kinds)])
            if question is None:
                break
            yield Sample(
                drawing.image,
                question.text,
                question.answer,
                question.kind,
                question.boxes(scene),
                index,
                question.dense,
            )
            made += 1
