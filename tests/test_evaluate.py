"""Intervals, paired comparisons, and the pocket benchmark's accounts."""

import pytest

from eadp.evaluate.statistics import paired_difference, wilson


def test_wilson_interval():
    # By hand, z = 1.96: centre (0.8 + 0.0384/2/1.0384…): the textbook's 80 of 100 is 71.1 % to 86.7 %.
    low, high = wilson(80, 100)
    assert low == pytest.approx(0.7112, abs=1e-4)
    assert high == pytest.approx(0.8666, abs=1e-4)
    assert wilson(0, 10)[0] == 0
    assert wilson(10, 10)[1] == pytest.approx(1)
    with pytest.raises(ValueError, match="11 of 10"):
        wilson(11, 10)


def test_a_paired_difference_sees_what_two_intervals_would_not():
    a = [True] * 90 + [False] * 10
    b = [True] * 80 + [False] * 20
    difference, low, high = paired_difference(a, b)
    assert difference == pytest.approx(0.1)
    assert 0 < low < difference < high
    assert paired_difference(a, a) == (0, 0, 0)
    with pytest.raises(ValueError, match="same questions"):
        paired_difference(a, b[:50])
