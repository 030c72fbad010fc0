"""CDPruner: its own release on LLaVA, EADP's repository on Qwen and video."""

from __future__ import annotations

from typing import Any

import torch

from eadp.core import TextGuide
from eadp.methods.cdpruner import CDPruner
from eadp.parity.eadp_llava import visual_tokens
from eadp.parity.eadp_qwen import over_all, pruned
from eadp.parity.eadp_video import frames
from eadp.parity.vectors import Vector


def replay(vector: Vector) -> dict[str, Any]:
    kind, keep = vector.settings["kind"], vector.settings["K"]
    if kind == "qwen":
        return _qwen(vector, CDPruner(keep=keep))
    tokens = frames(vector) if kind == "frames" else visual_tokens(vector)
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


def _qwen(vector: Vector, method: CDPruner) -> dict[str, Any]:
    parts = pruned(vector, method)
    kept, order = over_all(parts)
    zeros = [torch.zeros(part.total) if part.scores is None else part.scores for part in parts]
    return {
        "relevance": torch.cat(zeros),
        "order": order,
        "gains": torch.cat([torch.zeros(len(part)) if part.gains is None else part.gains for part in parts]),
        "kept": kept,
        "quotas": torch.tensor([len(part) for part in parts]),
        "rows_index": kept,
        "rows": vector["image_features"][kept],
    }
