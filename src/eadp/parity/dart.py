"""Replay of DART. The vectors give hidden states, keys and the weights of the final norm."""

from __future__ import annotations

from typing import Any

import torch

from eadp.methods.dart import DART
from eadp.methods.inside import DEPTH, Cut
from eadp.parity.sequence import GivenLayerView, compaction_keeping, image_positions, text_positions
from eadp.parity.vectors import GoldenVector


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run DART on the vector's inputs and return its outputs by name."""
    settings = vector.settings
    count = settings["max_num_trunction"]
    method = DART(
        keep=1 - settings["reduction_ratio"] if count is None else count,
        visual_pivots=settings["visual_pivots"],
        text_pivots=settings["text_pivots"],
        layers=(settings["layer"],),
    )
    image, words, hidden = image_positions(vector), text_positions(vector), vector["hidden"]
    keys = vector["keys"].transpose(0, 1).flatten(1)
    view = GivenLayerView(
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
    pivots = method.find_pivots(view)
    added = torch.stack(method.share_tokens(cut, view, pivots))
    return {
        "visual_pivots": pivots.visual,
        "text_pivots": pivots.text,
        "pivot_order": torch.cat([image[pivots.visual], words[pivots.text]])[pivots.turn],
        "per_pivot": added.shape[1],
        "added": added,
        "kept": kept,
        "position_ids": compaction_keeping(vector, kept).take_columns(torch.arange(len(hidden))[None])[0],
    }
