"""Pocket scenes as questions for the harnesses: yes or no as in POPE, one of four as in MMBench."""

from __future__ import annotations

import random
from dataclasses import dataclass

from PIL.Image import Image

from eadp.evaluate.harness_settings import HarnessSettings
from eadp.evaluate.pruned_model import PrunedModel
from eadp.pocket.samples import samples
from eadp.pocket.world import COLOURS, SHAPES

LETTERS = "ABCD"


@dataclass(frozen=True)
class Scene:
    """An image, a question and the right answer, which is a letter if there are options."""

    number: int
    image: Image
    question: str
    answer: str
    options: tuple[str, ...] = ()


def yes_or_no(total: int) -> list[Scene]:
    drawn = samples("test", total, ("existence",))
    return [Scene(number, each.image, each.question, each.answer) for number, each in enumerate(drawn)]


def one_of_four(total: int) -> list[Scene]:
    scenes = []
    for number, each in enumerate(samples("test", total, ("colour", "shape"))):
        others = [name for name in (COLOURS if each.kind == "colour" else SHAPES) if name != each.answer]
        chance = random.Random(number)
        options = [*chance.sample(others, 3), each.answer]
        chance.shuffle(options)
        letter = LETTERS[options.index(each.answer)]
        scenes.append(Scene(number, each.image, each.question, letter, tuple(options)))
    return scenes


def answer_without_harness(scenes: list[Scene], prompts: list[str], **settings: object) -> tuple[list[str], list[int]]:
    """Answer prompts one by one without a harness, and return answers and token counts."""
    model = PrunedModel(HarnessSettings.from_arguments(pretrained="pocket", **settings))
    answers = [
        model.answer(
            [[{"role": "user", "content": [{"type": "image", "image": scene.image}, {"type": "text", "text": prompt}]}]]
        )[0]
        for scene, prompt in zip(scenes, prompts, strict=True)
    ]
    return [answer.answer for answer in answers], [answer.tokens for answer in answers]
