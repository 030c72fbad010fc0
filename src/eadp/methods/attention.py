"""What methods share that go by the vision tower's attention."""

from __future__ import annotations

import torch
from torch import Tensor

from eadp.core import TowerAttention, VisualTokens
from eadp.core.similarity import unit_rows


def counted(method: str, layer: int, depth: int) -> int:
    """A layer of the tower counted from 0; given so, or from the end where it is negative."""
    if not -depth <= layer < depth:
        raise ValueError(f"{method} asks for layer {layer}, but the vision tower has {depth}")
    return layer % depth


def tower_layers(method: str, tokens: VisualTokens, count: int) -> list[TowerAttention]:
    """The `count` layers that the method asked for."""
    if len(tokens.attention) != count:
        raise ValueError(
            f"{method} goes by the vision tower's attention: VisualTokens must carry {count} layers in `attention`, "
            f"got {len(tokens.attention)}"
        )
    return list(tokens.attention)


def attention_on(layer: TowerAttention) -> Tensor:
    """N, what CLS attends to; what the tokens receive, where the tower has no CLS."""
    return received(layer) if layer.cls is None else layer.cls


def received(layer: TowerAttention) -> Tensor:
    """N, what the tokens receive."""
    if layer.received is None:
        raise ValueError(f"layer {layer.layer} must say what its tokens `received`, not only what CLS attends to")
    return layer.received


def variant(method: str, layer: TowerAttention) -> str:
    """The method's name, with the stand-in where the tower has no CLS."""
    return f"{method} (attention received)" if layer.cls is None else method


def without(total: int, taken: Tensor) -> Tensor:
    """The indices that are not taken, sorted."""
    free = torch.ones(total, dtype=torch.bool, device=taken.device)
    free[taken] = False
    return free.nonzero().flatten()


def key_cosine(keys: Tensor, of: Tensor, to: Tensor) -> Tensor:
    """len(of)×len(to), the cosine of keys, n×c."""
    unit = unit_rows(keys, "keys")
    return unit[of] @ unit[to].T
