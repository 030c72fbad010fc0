"""How sure an accuracy is, and a difference between two."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Z95 = 1.959964
"""Standard deviations that hold 95 % of a normal distribution."""
DRAWS = 10_000
"""Resamplings, enough for the ends of an interval to hold to about a twentieth of its width."""
AT_ONCE = 1_000_000
"""Counts that are held in memory at a time."""


def wilson(right: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share of `right` out of `total`, after Wilson."""
    if not 0 <= right <= total or not total:
        raise ValueError(f"a share needs 0 ≤ right ≤ total and total ≥ 1, got {right} of {total}")
    share, spread = right / total, Z95**2 / total
    middle = (share + spread / 2) / (1 + spread)
    reach = Z95 * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def mean_interval(scores: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a mean: Wilson's where every score is right or wrong, else by resampling."""
    if set(scores) <= {0, 1}:
        return wilson(int(sum(scores)), len(scores))
    return _resampled(np.asarray(scores, float), seed=0, draws=DRAWS)


def paired_difference(
    a: Sequence[float], b: Sequence[float], seed: int = 0, draws: int = DRAWS
) -> tuple[float, float, float]:
    """Mean of a minus mean of b on the same questions, and its 95 % interval by resampling the questions."""
    if len(a) != len(b) or not a:
        raise ValueError(f"a paired comparison needs the same questions on both sides, got {len(a)} and {len(b)}")
    difference = np.asarray(a, float) - np.asarray(b, float)
    low, high = _resampled(difference, seed, draws)
    return float(difference.mean()), low, high


def _resampled(values: np.ndarray, seed: int, draws: int) -> tuple[float, float]:
    """The 95 % interval of the mean over samples drawn with replacement.

    How often each distinct value is drawn is multinomial, so that a draw of a hundred thousand right and wrong answers
    costs no more than one of ten.
    """
    distinct, counts = np.unique(values, return_counts=True)
    chance = np.random.default_rng(seed)
    step = max(1, AT_ONCE // len(distinct))
    means = [
        chance.multinomial(len(values), counts / len(values), size=min(step, draws - start)) @ distinct / len(values)
        for start in range(0, draws, step)
    ]
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return float(low), float(high)
