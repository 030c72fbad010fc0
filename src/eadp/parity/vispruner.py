"""Replay of VisPruner."""

from __future__ import annotations

from typing import Any

import torch

from eadp.core import TowerAttention, VisualTokens
from eadp.methods.vispruner import VisPruner
from eadp.parity.vectors import GoldenVector


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run VisPruner on the vector's inputs and return its outputs by name."""
    settings = vector.settings
    crops, grid = settings["crops"], tuple(settings["grid"])
    features, attention = vector["tower_features"].flatten(0, 1), vector["cls_attention"].mean(1)
    layer = TowerAttention(22, 24, torch.zeros(len(features), 1, 1), attention.flatten())
    tokens = VisualTokens(features, None, [grid] * crops, attention=[layer], tower_features=features)
    method = VisPruner(keep=settings["visual_token_num"] * crops, ratio=settings["important_ratio"])
    parts = method.split_tokens(tokens)
    return {
        "kept": method.select(tokens).indices,
        "importance": attention,
        "important": torch.stack([part.important for part in parts]),
        "diverse": torch.stack([part.diverse for part in parts]),
    }
