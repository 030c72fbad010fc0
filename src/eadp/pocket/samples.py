"""The samples of the pocket benchmark: scenes with questions, and the scoring of answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
from PIL.Image import Image

from eadp.pocket.text import format_prompt
from eadp.pocket.world import KINDS, Split, make_question, make_scene, render_image

Box = tuple[float, float, float, float]
"""Top, left, bottom, right, as shares of the image."""

QUESTIONS_PER_SCENE = 2


@dataclass(frozen=True)
class Sample:
    """A question about a scene.

    Attributes:
        image: The image of the scene; of a clip, the first frame.
        question: The question.
        answer: The correct answer.
        kind: The kind of the question, one of `KINDS`.
        boxes: The boxes of the things that the question is about; empty if they are not in the scene.
        scene: The number of the scene in its split.
        dense: Whether the question is long: several questions in one, or wrapped in an instruction.
        frames: The frames, if the scene is a clip.
    """

    image: Image
    question: str
    answer: str
    kind: str
    boxes: tuple[Box, ...]
    scene: int
    dense: bool = False
    frames: tuple[Image, ...] = ()

    @property
    def prompt(self) -> str:
        """The prompt for the processor, to be given together with the image."""
        return format_prompt(self.question)

    def is_correct(self, answer: str) -> bool:
        """Compare an answer with the correct one, apart from spaces, capitals and a full stop at the end."""
        return _normalize(answer) == _normalize(self.answer)


def samples(split: Split, total: int, kinds: tuple[str, ...] = KINDS) -> Iterator[Sample]:
    """Generate questions of a split, always the same ones.

    Args:
        split: The split.
        total: Number of questions.
        kinds: The kinds of questions, which take turns.

    Yields:
        The samples, at most `QUESTIONS_PER_SCENE` per scene. Kinds that a scene does not allow are asked about the
        next one.

    Raises:
        ValueError: If a kind is unknown.
    """
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ValueError(f"unknown kinds of question {unknown}; there are {', '.join(KINDS)}")
    made = 0
    for index in count():
        scene, image = make_scene(split, index), None
        for _ in range(QUESTIONS_PER_SCENE):
            if made == total:
                return
            kind = kinds[made % len(kinds)]
            question = make_question(scene, np.random.default_rng((*scene.seed, 2, made)), kind)
            if question is None:
                continue
            image = image or render_image(scene)
            yield Sample(image, question.text, question.answer, kind, question.boxes(scene), index)
            made += 1


def _normalize(answer: str) -> str:
    return " ".join(answer.lower().rstrip(". ").split())
