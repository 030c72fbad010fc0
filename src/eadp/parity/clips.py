"""Clips of the vectors for video methods."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eadp.core import Selection, TowerAttention, VisualTokens
from eadp.core.types import Grid
from eadp.parity.vectors import GoldenVector


def build_clip(
    features: Tensor, grid: Grid, attention: Tensor | None = None, pooled: Tensor | None = None
) -> VisualTokens:
    """Build the tokens of a clip.

    Args:
        features: N×d, or T×n×d.
        grid: Rows and columns of each frame.
        attention: T×n, the attention that each token receives, or that of a pooling head where `pooled` is given.
        pooled: T×c, the vector of each frame from the pooling head.
    """
    features = features.flatten(0, -2)
    layers = []
    if attention is not None:
        flat, keys = attention.flatten(), torch.zeros(len(features), 1, 1)
        layers.append(TowerAttention(0, 1, keys, received=flat) if pooled is None else TowerAttention(0, 1, keys, flat))
    grids = [grid] * (len(features) // (grid[0] * grid[1]))
    return VisualTokens(features, None, grids, attention=layers, tower_cls=pooled, is_clip=True)


def merged_grid(vector: GoldenVector, patches: list[int]) -> Grid:
    """Return rows and columns of a frame's tokens. patches: frames, rows and columns of the patches."""
    merge = vector.settings["spatial_merge_size"]
    return patches[1] // merge, patches[2] // merge


def sent_rows(tokens: VisualTokens, selection: Selection) -> Tensor:
    """Return the merged rows, in the order in which the language model receives them."""
    assert selection.merge is not None
    return selection.merge.double() @ tokens.features.double()


def row_tokens(selection: Selection) -> Tensor:
    """Return the token that each row stands for. A row that stands for none repeats the token of the row before."""
    tokens = (selection.indices if selection.rows is None else selection.rows).tolist()
    for index, token in enumerate(tokens):
        tokens[index] = tokens[index - 1] if token < 0 else token
    return torch.tensor(tokens)


def lengths(ranges: list[slice]) -> list[Any]:
    """Return the length of each range of frames."""
    return [each.stop - each.start for each in ranges]
