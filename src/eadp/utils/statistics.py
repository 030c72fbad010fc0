"""95 % confidence intervals of a proportion, a mean, a median, and the difference of two means; paired tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959964
"""95 % of a normal distribution lie within this many standard deviations of its mean."""
MEAN_DRAWS, MEDIAN_DRAWS = 10_000, 2_000
"""Bootstrap samples. Ten thousand determine the ends of an interval to about a twentieth of its width."""
TEST_DRAWS = 100_000
"""Random signs of a paired test: a p-value of 0.0005, which is needed among 100 pairs, is then known to a tenth."""
MAX_COUNTS = 1_000_000
"""Maximum number of values that a bootstrap of means, or a test, holds in memory."""


@dataclass(frozen=True)
class MedianInterval:
    """A median with its 95 % bootstrap interval."""

    median: float
    low: float
    high: float

    def __format__(self, kind: str) -> str:
        return f"{self.median:{kind}} ({self.low:{kind}}–{self.high:{kind}})"


def wilson_interval(successes: int, total: int) -> tuple[float, float]:
    """Compute Wilson's 95 % interval of the proportion `successes` / `total`.

    Returns:
        The ends of the interval, in [0, 1].

    Raises:
        ValueError: If `total` is 0, or `successes` is negative or above `total`.
    """
    if not 0 <= successes <= total or not total:
        raise ValueError(f"a proportion needs 0 ≤ successes ≤ total and total ≥ 1, got {successes} of {total}")
    share, spread = successes / total, Z95**2 / total
    centre = (share + spread / 2) / (1 + spread)
    half_width = Z95 * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    # The interval holds the proportion itself, which rounding could put outside at 0 and 1.
    return max(0.0, min(share, centre - half_width)), min(1.0, max(share, centre + half_width))


def mean_interval(scores: Sequence[float]) -> tuple[float, float]:
    """Compute the 95 % interval of a mean: Wilson's if every score is 0 or 1, otherwise by bootstrap."""
    if set(scores) <= {0, 1}:
        return wilson_interval(int(sum(scores)), len(scores))
    return _interval(_resampled_means(np.asarray(scores, float), MEAN_DRAWS, seed=0))


def paired_difference(
    a: Sequence[float], b: Sequence[float], seed: int = 0, draws: int = MEAN_DRAWS
) -> tuple[float, float, float]:
    """Compute the mean of a − b over the same samples, and its 95 % bootstrap interval.

    Args:
        a: One score per sample.
        b: One score per sample, in the same order.
        seed: Seed of the bootstrap.
        draws: Number of bootstrap samples.

    Returns:
        The mean difference and the ends of its interval.

    Raises:
        ValueError: If there are no scores, or not as many in `a` as in `b`.
    """
    if len(a) != len(b) or not a:
        raise ValueError(f"a paired comparison needs the same questions on both sides, got {len(a)} and {len(b)}")
    difference = np.asarray(a, float) - np.asarray(b, float)
    low, high = _interval(_resampled_means(difference, draws, seed))
    return float(difference.mean()), low, high


def paired_p_values(
    differences: np.ndarray, groups: Sequence[int], seed: int = 0, draws: int = TEST_DRAWS
) -> np.ndarray:
    """Compute two-sided p-values of paired differences by random signs.

    If two methods do not differ, the sign of their difference on a group of samples is as likely + as −. Samples that
    share an image are one group, because they are not independent.

    Args:
        differences: n×P, the differences of P pairs of methods on n samples.
        groups: n, the group of each sample.
        seed: Seed of the signs.
        draws: Number of draws of the signs.

    Returns:
        P p-values, at least 1 / (draws + 1).
    """
    _, group = np.unique(np.asarray(groups), return_inverse=True)
    sums = np.zeros((int(group.max()) + 1, differences.shape[1]))
    np.add.at(sums, group, differences)
    observed = np.abs(sums.sum(0))
    generator = np.random.default_rng(seed)
    as_large = np.zeros(differences.shape[1])
    chunk = max(1, MAX_COUNTS // len(sums))
    for start in range(0, draws, chunk):
        signs = generator.integers(0, 2, (min(chunk, draws - start), len(sums))) * 2.0 - 1
        # Sums of the same differences in another order may differ by rounding.
        as_large += (np.abs(signs @ sums) >= observed * (1 - 1e-9)).sum(0)
    return (as_large + 1) / (draws + 1)


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Correct p-values for their number (Holm, 1979): a pair is significant at 5 % if its corrected value is ≤ 0.05."""
    values = np.asarray(p_values, float)
    order = np.argsort(values, kind="stable")
    corrected = np.minimum(1, np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)))
    result = np.empty_like(values)
    result[order] = corrected
    return result


def median_interval(values: Sequence[float], seed: int = 0, draws: int = MEDIAN_DRAWS) -> MedianInterval:
    """Compute a median and its 95 % bootstrap interval.

    Raises:
        ValueError: If there are no values.
    """
    data = np.asarray(values, float)
    if not len(data):
        raise ValueError("a median needs at least one value")
    picks = np.random.default_rng(seed).integers(len(data), size=(draws, len(data)))
    return MedianInterval(float(np.median(data)), *_interval(np.median(data[picks], axis=1)))


def _interval(resampled: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return float(low), float(high)


def _resampled_means(values: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """Return the means of `draws` samples drawn with replacement.

    The counts of the distinct values are multinomial, so the cost of a draw depends only on how many distinct values
    there are.
    """
    distinct, counts = np.unique(values, return_counts=True)
    generator = np.random.default_rng(seed)
    chunk = max(1, MAX_COUNTS // len(distinct))
    means = [
        generator.multinomial(len(values), counts / len(values), size=min(chunk, draws - start))
        @ distinct
        / len(values)
        for start in range(0, draws, chunk)
    ]
    return np.concatenate(means)
