"""Helpers of the methods that rank tokens by the attention of the vision tower."""

from __future__ import annotations

import torch
from torch import Tensor

from eadp.core import TowerAttention, VisualTokens
from eadp.core.similarity import unit_rows


def resolve_layer(method: str, layer: int, depth: int) -> int:
    """Return a layer of a tower of `depth` layers counted from 0; a negative one counts from the end."""
    if not -depth <= layer < depth:
        raise ValueError(f"{method} asks for layer {layer}, but the vision tower has {depth}")
    return layer % depth


def require_attention(method: str, tokens: VisualTokens, count: int) -> list[TowerAttention]:
    """Return the attention of the `count` layers that the method asked for."""
    if len(tokens.attention) != count:
        raise ValueError(
            f"{method} ranks tokens by the vision tower's attention: VisualTokens must carry {count} layers in "
            f"`attention`, got {len(tokens.attention)}"
        )
    return list(tokens.attention)


def cls_attention(layer: TowerAttention) -> Tensor:
    """Return N, the attention of CLS to each token; where the tower has no CLS, the attention that each receives."""
    return received_attention(layer) if layer.cls is None else layer.cls


def received_attention(layer: TowerAttention) -> Tensor:
    """Return N, the attention that each token receives from all queries."""
    if layer.received is None:
        raise ValueError(f"layer {layer.layer} must carry the attention that tokens `received`, not only that of CLS")
    return layer.received


def label_selection(method: str, layer: TowerAttention) -> str:
    """Return the method's name, marked where received attention replaces that of a missing CLS token."""
    return f"{method} (attention received)" if layer.cls is None else method


def complement(total: int, indices: Tensor) -> Tensor:
    """Return the sorted indices of 0 … total − 1 that are not in `indices`."""
    is_free = torch.ones(total, dtype=torch.bool, device=indices.device)
    is_free[indices] = False
    return is_free.nonzero().flatten()


def key_cosine(keys: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return len(rows)×len(columns), the cosine between keys of two sets of tokens; keys: n×c."""
    unit = unit_rows(keys, "keys")
    return unit[rows] @ unit[columns].T


def require_features(method: str, tokens: VisualTokens) -> Tensor:
    """Return N×w, the tokens in the output of the vision tower."""
    if tokens.tower_features is None:
        raise ValueError(f"{method} compares tokens in the vision tower: VisualTokens must carry `tower_features`")
    return tokens.tower_features
