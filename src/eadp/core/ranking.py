"""Rank scores and find outliers among them."""

from __future__ import annotations

from torch import Tensor


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
