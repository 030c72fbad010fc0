"""Rank scores and find outliers among them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eadp.core.diversity import OrderedPicks


def rank_descending(scores: Tensor) -> Tensor:
    """Return the indices of N scores (or B×N), highest score first; of equal scores, the lowest index comes first.

    Only exactly equal scores tie. No tolerance would suit all scores: attention weights span orders of magnitude, while
    a cosine near 0 has the same absolute rounding error as one near 1.
    """
    return scores.sort(descending=True, stable=True).indices


def outliers(scores: Tensor) -> Tensor:
    """Return N booleans, true for scores above Q3 + 1.5·(Q3 − Q1), with linearly interpolated quartiles."""
    scores = scores.double()
    first, third = scores.quantile(0.25), scores.quantile(0.75)
    return scores > third + 1.5 * (third - first)


def heaviest_by_quota(
    features: Tensor, weights: Tensor, blocks: Sequence[slice], quotas: Sequence[int]
) -> OrderedPicks:
    """Pick the Q_p tokens of largest weight of each block p, however similar their features are.

    Args:
        features: N×d; without effect.
        weights: N.
        blocks: The range of token indices of each block.
        quotas: Q_p, the number of tokens to pick in each block.
    """
    parts = zip(blocks, quotas, strict=True)
    order = torch.cat([rank_descending(weights[block])[:quota] + block.start for block, quota in parts])
    return OrderedPicks(order, weights[order])
