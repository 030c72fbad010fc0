"""Replay of CDPruner: its own release on LLaVA, and EADP's repository on Qwen and video."""

from __future__ import annotations

from typing import Any

import torch

from eadp.core import TextGuide
from eadp.methods.cdpruner import CDPruner
from eadp.parity.eadp_llava import image_tokens
from eadp.parity.eadp_qwen import join_images, select_per_image
from eadp.parity.eadp_video import video_tokens
from eadp.parity.vectors import GoldenVector


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run CDPruner on the vector's inputs and return its outputs by name."""
    kind, keep = vector.settings["kind"], vector.settings["K"]
    if kind == "qwen":
        return _replay_qwen(vector, CDPruner(keep=keep))
    tokens = video_tokens(vector) if kind == "frames" else image_tokens(vector)
    blocks = len(tokens.grids)
    text = TextGuide(None, list(vector["text_pooled"]), sign=vector.settings["sign"])
    selection = CDPruner(keep=blocks * keep).select(tokens, text)
    assert selection.scores is not None
    in_order = tokens.in_sequence(selection.indices)
    return {
        "relevance": selection.scores.unflatten(0, (blocks, -1)),
        "order": selection.order,
        "gains": selection.gains,
        "kept": selection.indices,
        "quotas": torch.tensor(selection.quotas),
        "rows_index": in_order,
        "rows": tokens.features[in_order],
    }


def _replay_qwen(vector: GoldenVector, method: CDPruner) -> dict[str, Any]:
    selections = select_per_image(vector, method)
    kept, order = join_images(selections)
    scores = [torch.zeros(each.total) if each.scores is None else each.scores for each in selections]
    gains = [torch.zeros(len(each)) if each.gains is None else each.gains for each in selections]
    return {
        "relevance": torch.cat(scores),
        "order": order,
        "gains": torch.cat(gains),
        "kept": kept,
        "quotas": torch.tensor([len(each) for each in selections]),
        "rows_index": kept,
        "rows": vector["image_features"][kept],
    }
