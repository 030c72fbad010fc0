"""95 % intervals: of a share, a mean, a median, and of the difference between two means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959964
"""Standard deviations that hold 95 % of a normal distribution."""
MEAN_DRAWS, MEDIAN_DRAWS = 10_000, 2_000
"""Bootstrap samples. Ten thousand fix the ends of an interval to about a twentieth of its width."""
MAX_COUNTS = 1_000_000
"""Numbers that a bootstrap of means holds in memory at a time."""


@dataclass(frozen=True)
class MedianInterval:
    """A median with its 95 % bootstrap interval."""

    median: float
    low: float
    high: float

    def __format__(self, kind: str) -> str:
        return f"{self.median:{kind}} ({self.low:{kind}}–{self.high:{kind}})"


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """Compute Wilson's 95 % interval of the share `right` / `total`."""
    if not 0 <= right <= total or not total:
        raise ValueError(f"a share needs 0 ≤ right ≤ total and total ≥ 1, got {right} of {total}")
    share, spread = right / total, Z95**2 / total
    middle = (share + spread / 2) / (1 + spread)
    reach = Z95 * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def mean_interval(scores: Sequence[float]) -> tuple[float, float]:
    """Compute the 95 % interval of a mean: Wilson's if every score is 0 or 1, else by bootstrap."""
    if set(scores) <= {0, 1}:
        return wilson_interval(int(sum(scores)), len(scores))
    return _interval(_resampled_means(np.asarray(scores, float), MEAN_DRAWS, seed=0))


def paired_difference(
    a: Sequence[float], b: Sequence[float], seed: int = 0, draws: int = MEAN_DRAWS
) -> tuple[float, float, float]:
    """Compute the mean of a − b over the same samples, and the ends of its 95 % bootstrap interval."""
    if len(a) != len(b) or not a:
        raise ValueError(f"a paired comparison needs the same questions on both sides, got {len(a)} and {len(b)}")
    difference = np.asarray(a, float) - np.asarray(b, float)
    low, high = _interval(_resampled_means(difference, draws, seed))
    return float(difference.mean()), low, high


def median_interval(values: Sequence[float], seed: int = 0, draws: int = MEDIAN_DRAWS) -> MedianInterval:
    """Compute a median and its 95 % bootstrap interval."""
    found = np.asarray(values, float)
    if not len(found):
        raise ValueError("a median needs at least one value")
    picks = np.random.default_rng(seed).integers(len(found), size=(draws, len(found)))
    return MedianInterval(float(np.median(found)), *_interval(np.median(found[picks], axis=1)))


def _interval(resampled: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return float(low), float(high)


def _resampled_means(values: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """Means of samples drawn with replacement.

    The count of each distinct value is multinomial, so that a draw of a hundred thousand right and wrong answers costs
    no more than one of ten.
    """
    distinct, counts = np.unique(values, return_counts=True)
    generator = np.random.default_rng(seed)
    step = max(1, MAX_COUNTS // len(distinct))
    means = [
        generator.multinomial(len(values), counts / len(values), size=min(step, draws - start)) @ distinct / len(values)
        for start in range(0, draws, step)
    ]
    return np.concatenate(means)
