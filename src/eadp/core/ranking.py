"""Which scores are highest, and which stand out."""

from __future__ import annotations

from torch import Tensor


def ranked(scores: Tensor) -> Tensor:
    """The indices of N scores, highest first; the lowest index where scores are equal.

    Equal means to the last bit. Scores have no common scale that rounding is relative to: attention falls over orders
    of magnitude, a cosine near 0 is as uncertain as one near 1. So no tolerance would be right for all.
    """
    return scores.sort(descending=True, stable=True).indices


def outliers(scores: Tensor) -> Tensor:
    """N, true above Q3 + 1.5·(Q3 − Q1); quartiles by linear interpolation."""
    scores = scores.double()
    first, third = scores.quantile(0.25), scores.quantile(0.75)
    return scores > third + 1.5 * (third - first)
