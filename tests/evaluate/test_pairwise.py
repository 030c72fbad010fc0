"""Paired tests of all pairs of methods."""

import numpy as np
import pytest

from eadp.evaluate.pairwise import compare_all
from eadp.utils.statistics import holm, paired_p_values


def test_holm_multiplies_the_smallest_value_by_all_the_next_by_one_less():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]).tolist() == [1, 1]


def test_p_values_are_those_of_the_exact_sign_test():
    """Ten samples of their own group, of which one is better on nine: (1 + 10) · 2 of 2¹⁰ signs are as extreme."""
    differences = np.array([[1.0]] * 9 + [[-1.0]])
    (value,) = paired_p_values(differences, range(10))
    assert value == pytest.approx(22 / 1024, abs=2e-3)


def test_equal_answers_never_differ():
    assert paired_p_values(np.zeros((8, 1)), range(8)) == [1]


def test_questions_about_one_scene_count_as_one():
    differences = np.ones((40, 1))
    alone, together = paired_p_values(differences, range(40)), paired_p_values(differences, [0] * 40)
    assert alone < 1e-4
    assert together == 1


def test_methods_that_all_differ_are_found():
    rng = np.random.default_rng(0)
    right = {f"method {share}": rng.random(600) < share for share in (0.9, 0.6, 0.3)}
    right["close"] = right["method 0.6"].copy()
    right["close"][:2] ^= True
    found = compare_all(right, range(600))
    assert set(found.distinct) in ({"method 0.9", "method 0.6", "method 0.3"}, {"method 0.9", "close", "method 0.3"})
    assert found.names[0] == found.distinct[0] == "method 0.9"
    assert found.differ("method 0.3", "method 0.9")
    assert not found.differ("close", "method 0.6")


def test_answers_to_other_questions_are_refused():
    with pytest.raises(ValueError, match="b must have 2 answers"):
        compare_all({"a": [True, False], "b": [True]}, [0, 1])


def test_one_method_alone_is_distinct():
    assert compare_all({"a": [True, False]}, [0, 1]).distinct == ("a",)
