"""The model for scenes of things that ships with the package knows something about them."""

from __future__ import annotations

import pytest

from eadp.evaluate.pocket_benchmark import evaluate
from eadp.method_spec import ALL_TOKENS, BLIND, MAJORITY, MethodSpec


@pytest.mark.slow
def test_answers_are_better_than_those_without_the_image():
    report = evaluate([MethodSpec(ALL_TOKENS), MethodSpec(BLIND), MethodSpec("eadp", 0.25)], 160, model="things")
    unpruned, blind, majority = (report.find_outcome(name).accuracy for name in (ALL_TOKENS, BLIND, MAJORITY))
    pruned = report.find_outcome("eadp", 0.25).accuracy
    assert unpruned > max(blind, majority) + 0.05
    assert pruned > max(blind, majority)
