"""Replay of EADP on Qwen2.5-VL and Qwen3-VL."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens
from eadp.methods.before import BeforeMethod
from eadp.methods.eadp import EADP
from eadp.parity.eadp_llava import eadp_settings, stage_outputs
from eadp.parity.vectors import GoldenVector

MAPS = ("fused", "minmax", "smoothed", "importance")
"""Outputs with one value per visual token."""

WORD_DTYPES = {"entropy": torch.float32, "kept_words": torch.int64, "word_weights": torch.float32}
"""Outputs with one value per word, with their types."""


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run EADP on the vector's inputs and return its outputs by name.

    Images that fit into the budget are not scored: they have no word outputs, and their maps are 0.
    """
    settings = eadp_settings(vector)
    selections = select_per_image(vector, EADP.published(vector.settings["K"], "qwen2_5_vl", **settings))
    stages = [None if each.relevance is None else stage_outputs(each.relevance, 1, 1) for each in selections]
    kept, order = join_images(selections)
    words = vector["text_tokens"].shape[1]
    kept_words = max(1, int(settings["q"] * words))
    widths = {"entropy": words, "kept_words": kept_words, "word_weights": kept_words}
    per_word = {
        name: torch.cat(
            [torch.zeros(0, width, dtype=WORD_DTYPES[name]), *(each[name][:, 0] for each in stages if each)]
        )
        for name, width in widths.items()
    }
    per_token = {
        name: torch.cat(
            [
                stage[name][0] if stage else torch.zeros(each.total)
                for stage, each in zip(stages, selections, strict=True)
            ]
        )
        for name in MAPS
    }
    return {
        **per_word,
        **per_token,
        "order": order,
        "kept": kept,
        "quotas": torch.tensor([len(each) for each in selections]),
        "rows": vector["image_features"][kept],
    }


def images_of_prompt(vector: GoldenVector) -> list[VisualTokens]:
    """Build the tokens of each image of the prompt. A clip is one image of several grids."""
    grids = vector.settings["grids"]
    parts = vector["image_features"].split([t * rows * columns for t, rows, columns in grids])
    return [
        VisualTokens(part, part, [(rows, columns)] * t) for part, (t, rows, columns) in zip(parts, grids, strict=True)
    ]


def select_per_image(vector: GoldenVector, method: BeforeMethod) -> list[Selection]:
    """Prune each image with the full budget K. An image that fits into the budget is kept whole."""
    selections = []
    for number, tokens in enumerate(images_of_prompt(vector)):
        words = vector["text_tokens"][number] if "text_tokens" in vector else None
        text = TextGuide(words, vector["text_pooled"][number], sign=vector.settings["sign"])
        if len(tokens) <= vector.settings["K"]:
            selections.append(Selection(torch.arange(len(tokens)), len(tokens), method.name))
        else:
            selections.append(method.select(tokens, text))
    return selections


def join_images(selections: list[Selection]) -> tuple[Tensor, Tensor]:
    """Join the kept tokens, and the picks in order, of all images; indices count over all images."""
    starts = torch.tensor([0, *[each.total for each in selections]]).cumsum(0).tolist()
    kept, order = [], []
    for start, each in zip(starts, selections, strict=False):
        kept.append(each.indices + start)
        order.append((each.indices if each.order is None else each.order) + start)
    return torch.cat(kept), torch.cat(order)
