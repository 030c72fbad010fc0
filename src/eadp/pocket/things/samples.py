"""The samples of the world of things: images and clips with questions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from eadp.pocket.samples import Sample
from eadp.pocket.things.clips import make_clip
from eadp.pocket.things.questions import KINDS, WRAPPED, Question, make_question
from eadp.pocket.things.render import render, render_clip
from eadp.pocket.things.scene import Split, make_scene
from eadp.pocket.things.view import View

QUESTIONS_PER_SCENE = 3
TRIES = 10
"""Questions that are tried for each one that a scene gets."""

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
        for question in _SceneQuestions(split, index).ask(QUESTIONS_PER_SCENE, kinds, made):
            if made == total:
                return
            if question is None:
                break
            yield question
            made += 1


def scene_samples(
    split: Split, index: int, total: int, kinds: tuple[str, ...] = KINDS, wrapped: float = WRAPPED
) -> list[Sample]:
    """Return questions about one scene, always the same ones.

    Args:
        split: The split.
        index: The number of the scene.
        total: Number of questions. There are fewer if the scene allows too few.
        kinds: The kinds of questions, which take turns. Kinds that the scene does not allow are left out.
        wrapped: The share of questions that are wrapped in an instruction.
    """
    asked = _SceneQuestions(split, index).ask(TRIES * total, kinds, wrapped=wrapped)
    return [sample for sample in asked if sample is not None][:total]


class _SceneQuestions:
    """The questions about one scene."""

    def __init__(self, split: Split, index: int) -> None:
        self.scene, self.index = make_scene(split, index), index
        self.drawing = render(self.scene)
        self.view = View(self.scene, self.drawing.visible)

    def ask(
        self, total: int, kinds: tuple[str, ...], first: int = 0, wrapped: float = WRAPPED
    ) -> Iterator[Sample | None]:
        """Generate questions whose kinds take turns; None for a question that the scene does not allow."""
        rng = np.random.default_rng((*self.scene.seed, 2))
        for number in range(first, first + total):
            question = make_question(self.view, rng, kinds[number % len(kinds)], wrapped)
            yield None if question is None else self._make_sample(question)

    def _make_sample(self, question: Question) -> Sample:
        return Sample(
            self.drawing.image,
            question.text,
            question.answer,
            question.kind,
            question.boxes(self.scene),
            self.index,
            question.dense,
        )


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
