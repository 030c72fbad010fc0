"""EADP on Qwen2.5-VL and Qwen3-VL."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens
from eadp.methods.base import BeforeMethod
from eadp.methods.eadp import EADP
from eadp.parity.eadp_llava import settings_of, stages
from eadp.parity.vectors import Vector

MAPS = ("fused", "minmax", "smoothed", "importance")
DTYPES = {"entropy": torch.float32, "kept_words": torch.int64, "word_weights": torch.float32}


def replay(vector: Vector) -> dict[str, Any]:
    settings = settings_of(vector)
    parts = pruned(vector, EADP.published(vector.settings["K"], "qwen2_5_vl", **settings))
    seen = [None if part.relevance is None else stages(part.relevance, 1, 1) for part in parts]
    kept, order = over_all(parts)
    words = vector["text_tokens"].shape[1]
    stay = max(1, int(settings["q"] * words))
    widths = {"entropy": words, "kept_words": stay, "word_weights": stay}
    return {
        **{
            name: torch.cat([torch.zeros(0, width, dtype=DTYPES[name]), *(each[name][:, 0] for each in seen if each)])
            for name, width in widths.items()
        },
        **{
            name: torch.cat(
                [each[name][0] if each else torch.zeros(part.total) for each, part in zip(seen, parts, strict=True)]
            )
            for name in MAPS
        },
        "order": order,
        "kept": kept,
        "quotas": torch.tensor([len(part) for part in parts]),
        "rows": vector["image_features"][kept],
    }


def images(vector: Vector) -> list[VisualTokens]:
    """The images of one prompt; a clip is one image of several grids."""
    grids = vector.settings["grids"]
    parts = vector["image_features"].split([t * rows * columns for t, rows, columns in grids])
    return [
        VisualTokens(part, part, [(rows, columns)] * t) for part, (t, rows, columns) in zip(parts, grids, strict=True)
    ]


def pruned(vector: Vector, method: BeforeMethod) -> list[Selection]:
    """Each image with the whole budget for itself; one that fits stays whole."""
    found = []
    for number, tokens in enumerate(images(vector)):
        words = vector["text_tokens"][number] if "text_tokens" in vector else None
        text = TextGuide(words, vector["text_pooled"][number], sign=vector.settings["sign"])
        if len(tokens) <= vector.settings["K"]:
            found.append(Selection(torch.arange(len(tokens)), len(tokens), method.name))
        else:
            found.append(method.select(tokens, text))
    return found


def over_all(parts: list[Selection]) -> tuple[Tensor, Tensor]:
    """Kept tokens and picks in turn, counted over all images."""
    starts = torch.tensor([0, *[part.total for part in parts]]).cumsum(0).tolist()
    kept = [part.indices + start for part, start in zip(parts, starts, strict=False)]
    order = [
        (part.indices if part.order is None else part.order) + start for part, start in zip(parts, starts, strict=False)
    ]
    return torch.cat(kept), torch.cat(order)
