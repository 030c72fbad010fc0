"""Replay of EADP on LLaVA-Video."""

from __future__ import annotations

from typing import Any

import torch

from eadp.core import TextGuide, VisualTokens
from eadp.methods.eadp import EADP
from eadp.parity.eadp_llava import eadp_settings, picks_per_block, stage_outputs
from eadp.parity.vectors import GoldenVector


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run EADP on the vector's inputs and return its outputs by name."""
    given = vector.settings
    tokens = video_tokens(vector)
    text = TextGuide(list(vector["text_tokens"]), list(vector["text_pooled"]), sign=given["sign"])
    method = EADP.published(len(tokens.grids) * given["K"], "llava_video", **eadp_settings(vector))
    selection = method.select(tokens, text)
    assert selection.relevance is not None
    order, gains = picks_per_block(selection, tokens)
    return {
        **stage_outputs(selection.relevance, len(tokens.grids), 1, weights_per_token=True),
        "order": order,
        "gains": gains,
        "quotas": torch.tensor(selection.quotas),
        "kept": selection.indices,
        "rows": tokens.features[selection.indices],
    }


def video_tokens(vector: GoldenVector) -> VisualTokens:
    """Build the tokens of one clip, one block per frame."""
    features = vector["image_features"]
    aligned = vector["vision_features"].flatten(0, 1) if "vision_features" in vector else None
    return VisualTokens(features.flatten(0, 1), aligned, [tuple(vector.settings["grid"])] * len(features))
