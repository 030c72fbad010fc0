"""The tokenizer of the world of things, and captions as token ids."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from eadp.pocket.text import BOS, EOS, SPECIAL, format_prompt, train_tokenizer
from eadp.pocket.things.atlas import kinds
from eadp.pocket.things.captions import make_caption
from eadp.pocket.things.model import LONGEST_TEXT
from eadp.pocket.things.questions import make_questions
from eadp.pocket.things.render import render
from eadp.pocket.things.scene import SIGN_COLOURS, WORDS, make_scene
from eadp.pocket.things.view import View
from eadp.pocket.things.wording import plural, with_article

PADDING, START, END = SPECIAL.index("<pad>"), SPECIAL.index(BOS), SPECIAL.index(EOS)
TOKENIZER_SCENES = 400


def world_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer on all names, and on the captions of and questions about the first training scenes."""
    return train_tokenizer(_corpus())


def encode_captions(tokenizer: PreTrainedTokenizerFast, captions: list[str]) -> Tensor:
    """Encode captions as CLIP does: BOS, at most LONGEST_TEXT − 2 tokens, EOS, padding. B×L."""
    rows = [ids[: LONGEST_TEXT - 2] for ids in tokenizer(captions, add_special_tokens=False)["input_ids"]]
    ids = torch.full((len(rows), max(map(len, rows)) + 2), PADDING)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens) + 2] = torch.tensor([START, *tokens, END])
    return ids


def write_captions(views: tuple[View, ...], rng: np.random.Generator) -> list[str]:
    """Write a caption for every view; an empty one where nothing is clearly visible."""
    return [make_caption(view, rng) if view.clear else "" for view in views]


def _corpus() -> Iterator[str]:
    for kind in kinds():
        # With and without a space before it, and often enough that every word becomes one token.
        yield from 3 * (f"{with_article(kind.name)} the {kind.name} {plural(kind.name)}", kind.name.capitalize())
    for colour in SIGN_COLOURS:
        yield from 3 * (f"the {colour} sign",)
    for word in WORDS:
        yield from 3 * (f" {word}", f" {word.lower()}")
    for index in range(TOKENIZER_SCENES):
        scene = make_scene("train", index)
        view = View(scene, render(scene).visible)
        rng = np.random.default_rng((*scene.seed, 5))
        for question in make_questions(view, rng, 13):
            yield f"{format_prompt(question.text)} {question.answer}"
        if view.clear:
            yield make_caption(view, rng)
