"""95 % intervals."""

import numpy as np
import pytest

from eadp.utils.statistics import mean_interval, median_interval, paired_difference, wilson_interval


def test_wilson_interval():
    # By hand with z = 1.96: 80 of 100 gives 71.1 % to 86.7 %.
    low, high = wilson_interval(80, 100)
    assert low == pytest.approx(0.7112, abs=1e-4)
    assert high == pytest.approx(0.8666, abs=1e-4)
    assert all(wilson_interval(0, total)[0] == 0 and wilson_interval(total, total)[1] == 1 for total in range(1, 50))
    with pytest.raises(ValueError, match="11 of 10"):
        wilson_interval(11, 10)


def test_a_paired_difference_is_significant_though_the_intervals_overlap():
    a = [True] * 90 + [False] * 10
    b = [True] * 80 + [False] * 20
    difference, low, high = paired_difference(a, b)
    assert difference == pytest.approx(0.1)
    assert 0 < low < difference < high
    assert paired_difference(a, a) == (0, 0, 0)
    with pytest.raises(ValueError, match="same questions"):
        paired_difference(a, b[:50])


def test_the_interval_equals_that_of_plain_resampling():
    chance = np.random.default_rng(1)
    a, b = chance.random(300) < 0.8, chance.random(300) < 0.7
    difference = a.astype(float) - b
    picks = chance.integers(300, size=(20000, 300))
    low, high = np.quantile(difference[picks].mean(axis=1), [0.025, 0.975])
    assert paired_difference(list(a), list(b)) == pytest.approx((difference.mean(), low, high), abs=0.005)


def test_intervals_of_means():
    assert mean_interval([1.0] * 80 + [0.0] * 20) == wilson_interval(80, 100)
    low, high = mean_interval(list(np.random.default_rng(0).normal(5, 1, 400)))
    assert high - low == pytest.approx(2 * 1.96 / 20, rel=0.1)
    assert low < 5 < high


def test_a_median_lies_within_its_interval():
    found = median_interval([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found.median == 3
    assert 1 <= found.low <= 3 <= found.high <= 100
    assert f"{median_interval([2.0, 2.0]):.1f}" == "2.0 (2.0–2.0)"
    with pytest.raises(ValueError, match="at least one"):
        median_interval([])
