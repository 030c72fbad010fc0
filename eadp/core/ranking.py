"""Which scores are highest, and which stand out."""

from __future__ import annotations

from torch import Tensor


def ranked(scores: Tensor) -> Tensor:
    """The indices of N scores, highest first; the lowest index on a tie."""
    return scores.sort(descending=True, stable=True).indices


def outliers(scores: Tensor) -> Tensor:
    """N, true above Q3 + 1.5·(Q3 − Q1); quartiles by linear interpolation."""
    scores = scores.double()
    first, third = scores.quantile(0.25), scores.quantile(0.75)
    return scores > third + 1.5 * (third - first)
