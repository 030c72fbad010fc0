"""How sure an accuracy is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Z95 = 1.959964
"""Standard deviations that hold 95 % of a normal distribution."""


def wilson(right: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share of `right` out of `total`, after Wilson."""
    if not 0 <= right <= total or not total:
        raise ValueError(f"a share needs 0 ≤ right ≤ total and total ≥ 1, got {right} of {total}")
    share, spread = right / total, Z95**2 / total
    middle = (share + spread / 2) / (1 + spread)
    reach = Z95 * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def paired_difference(
    a: Sequence[bool], b: Sequence[bool], seed: int = 0, draws: int = 2000
) -> tuple[float, float, float]:
    """Accuracy of a minus accuracy of b on the same questions, and its 95 % interval by resampling the questions."""
    if len(a) != len(b) or not a:
        raise ValueError(f"a paired comparison needs the same questions on both sides, got {len(a)} and {len(b)}")
    difference = np.asarray(a, float) - np.asarray(b, float)
    picks = np.random.default_rng(seed).integers(len(difference), size=(draws, len(difference)))
    low, high = np.quantile(difference[picks].mean(axis=1), [0.025, 0.975])
    return float(difference.mean()), float(low), float(high)
