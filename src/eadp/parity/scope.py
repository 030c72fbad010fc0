"""Replay of SCOPE."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from eadp.core import TowerAttention, VisualTokens
from eadp.methods.scope import SCOPE
from eadp.parity.vectors import GoldenVector


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run SCOPE on the vector's inputs and return its outputs by name."""
    settings, has_attention = vector.settings, "cls_attention" in vector
    crops, grid = settings["crops"], tuple(settings["grid"])
    features = vector["tower_features"].flatten(0, 1)
    # The sum over heads, as the mean of a single head.
    attention = vector["cls_attention"].flatten() if has_attention else torch.ones(len(features))
    method = SCOPE(
        keep=settings["K"] * crops,
        alpha=settings["alpha"],
        combine="add" if settings["combine"] == "add" else "multiply",
    )
    layer = TowerAttention(22, 24, torch.zeros(len(features), 1, 1), attention)
    tokens = VisualTokens(features, None, [grid] * crops, attention=[layer], tower_features=features)
    selection = method.select(tokens)
    order = cast(Tensor, selection.order).unflatten(0, (crops, -1))
    starts = torch.tensor([block.start for block in tokens.blocks])
    return {
        "kept": selection.indices,
        "order": order - starts[:, None],
        "gains": cast(Tensor, selection.gains).unflatten(0, (crops, -1)),
    }
