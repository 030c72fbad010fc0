"""DART on its vectors: hidden states, keys and the final norm are given."""

from __future__ import annotations

from typing import Any

import torch

from eadp.methods.dart import DART
from eadp.methods.inside import DEPTH, Cut
from eadp.parity.sequence import Shown, image_of, left, words_of
from eadp.parity.vectors import Vector


def replay(vector: Vector) -> dict[str, Any]:
    settings = vector.settings
    fixed = settings["max_num_trunction"]
    method = DART(
        keep=1 - settings["reduction_ratio"] if fixed is None else fixed,
        visual_pivots=settings["visual_pivots"],
        text_pivots=settings["text_pivots"],
        layers=(settings["layer"],),
    )
    image, words, hidden = image_of(vector), words_of(vector), vector["hidden"]
    keys = vector["keys"].transpose(0, 1).flatten(1)
    view = Shown(
        visual=hidden[image],
        text=hidden[words],
        visual_keys=keys[image],
        text_keys=keys[words],
        visual_places=image,
        text_places=words,
        norm=vector["norm_weight"],
        eps=settings["eps"],
    )
    cut = next(iter(method.cuts(len(image), DEPTH)), Cut(settings["layer"], len(image)))
    kept = method.choose(cut, view).indices
    pivots = method.pivots(view)
    added = torch.stack(method.taken(cut, view, pivots))
    return {
        "visual_pivots": pivots.visual,
        "text_pivots": pivots.text,
        "pivot_order": torch.cat([image[pivots.visual], words[pivots.text]])[pivots.turn],
        "per_pivot": added.shape[1],
        "added": added,
        "kept": kept,
        "position_ids": left(vector, kept).take_columns(torch.arange(len(hidden))[None])[0],
    }
