"""Replay of HiPrune."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eadp.core import TowerAttention, VisualTokens
from eadp.methods.hiprune import HiPrune
from eadp.models.anyres import mosaic
from eadp.parity.vectors import GoldenVector


def replay(vector: GoldenVector) -> dict[str, Any]:
    """Run HiPrune on the vector's inputs and return its outputs by name."""
    settings = vector.settings
    method = HiPrune(
        keep=settings["retain"] if settings["kind"] == "qwen" else settings["K_total"],
        alpha=settings["alpha"],
        object_layer=settings["object_layer"] - 1,  # the release counts layers from 1
        deep_layer=settings["deep_layer_from_end"],
    )
    tokens = _build_tokens(vector, method)
    selection = method.select(tokens)
    picked = list(zip(method.group_tokens(tokens), tokens.blocks, strict=True))
    chosen = [torch.cat([part.anchors, part.buffers]).sort().values + block.start for part, block in picked]
    in_order = tokens.in_sequence(selection.indices)
    return {
        "anchors": torch.cat([part.anchors + block.start for part, block in picked]),
        "anchors_and_buffers": torch.cat(chosen),
        "kept": selection.indices,
        "quotas": selection.quotas,
        "rows_index": in_order,
        "rows": tokens.features[in_order],
    }


def _build_tokens(vector: GoldenVector, method: HiPrune) -> VisualTokens:
    settings, grid = vector.settings, tuple(vector.settings["grid"])
    depth = settings["depth"]
    if settings["kind"] == "qwen":
        features, family = vector["image_features"], "qwen2_5_vl"
        received = vector["attn_list"] / len(features)
        grids, layout = [grid], None
    else:
        features, family = vector.project(vector["hidden"].flatten(0, 1)), "llava"
        received = vector["received"].transpose(0, 1).flatten(1)
        grids, layout = [grid] * settings["crops"], settings.get("layout")
    return VisualTokens(
        features,
        None,
        grids,
        None if layout is None else tuple(layout),
        [
            TowerAttention(layer, depth, _no_keys(len(features)), received=received[layer], family=family)
            for layer in method.vision_layers(depth, family)
        ],
        sequence=None if layout is None else mosaic(grid, layout),
    )


def _no_keys(total: int) -> Tensor:
    return torch.zeros(total, 1, 1)
