"""EADP on LLaVA-Video."""

from __future__ import annotations

from typing import Any

import torch

from eadp.core import TextGuide, VisualTokens
from eadp.methods.eadp import EADP
from eadp.parity.eadp_llava import picked_by_block, settings_of, stages
from eadp.parity.vectors import Vector


def replay(vector: Vector) -> dict[str, Any]:
    given = vector.settings
    tokens = frames(vector)
    text = TextGuide(list(vector["text_tokens"]), list(vector["text_pooled"]), sign=given["sign"])
    method = EADP.published(len(tokens.grids) * given["K"], "llava_video", **settings_of(vector))
    selection = method.select(tokens, text)
    assert selection.relevance is not None
    order, gains = picked_by_block(selection, tokens)
    return {
        **stages(selection.relevance, len(tokens.grids), 1, each_token=True),
        "order": order,
        "gains": gains,
        "quotas": torch.tensor(selection.quotas),
        "kept": selection.indices,
        "rows": tokens.features[selection.indices],
    }


def frames(vector: Vector) -> VisualTokens:
    """The frames of one clip."""
    features = vector["image_features"]
    aligned = vector["vision_features"].flatten(0, 1) if "vision_features" in vector else None
    return VisualTokens(features.flatten(0, 1), aligned, [tuple(vector.settings["grid"])] * len(features))
