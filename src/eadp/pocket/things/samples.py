"""The samples of the world of things: images and clips with questions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from eadp.pocket.samples import Sample
from eadp.pocket.things.clips import make_clip
from eadp.pocket.things.questions import KINDS, make_question
from eadp.pocket.things.render import render, render_clip
from eadp.pocket.things.scene import Split, make_scene
from eadp.pocket.things.view import View

QUESTIONS_PER_SCENE = 3
CLIP_FRAMES = 8
"""Frames of a clip. The models learn from as many."""


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


def clip_samples(split: Split, total: int) -> Iterator[Sample]:
    """Generate questions about clips of a split, one about each, always the same ones.

    Args:
        split: The split.
        total: Number of questions.

    Yields:
        The samples. Their kind is what happens, one of `EVENTS`, and their boxes are those of the thing in question
        in the frames that show it.
    """
    for index in range(total):
        clip = make_clip(split, index, CLIP_FRAMES)
        frames = tuple(drawing.image for drawing in render_clip(clip.frames))
        boxes = tuple(box for box in clip.boxes if box is not None)
        yield Sample(frames[0], clip.question, clip.answer, clip.event, boxes, index, frames=frames)
