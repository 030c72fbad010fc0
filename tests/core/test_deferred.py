"""Values that are computed when they are asked for."""

import copy
import pickle

import pytest
import torch

from eadp.core import Selection
from eadp.core.deferred import Deferred


def counting(value, calls):
    def compute():
        calls.append(value)
        return value

    return Deferred(compute)


def test_a_deferred_field_is_computed_once_and_reads_like_any_other():
    calls = []
    selection = Selection(torch.arange(3), 5, "x", coverage=counting(0.5, calls))
    assert not calls
    assert selection.coverage == selection.coverage == 0.5
    assert calls == [0.5]


def test_a_changed_copy_computes_nothing():
    calls = []
    selection = Selection(torch.arange(3), 5, "x", coverage=counting(0.5, calls), notes=("a",))
    changed = selection.changed(newlines=2)
    assert not calls
    assert (changed.newlines, changed.notes, changed.coverage) == (2, ("a",), 0.5)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copies_hold_the_values(copied):
    selection = Selection(torch.arange(3), 5, "x", quotas=Deferred(lambda: (1, 2)), problem=Deferred(lambda: "wrong"))
    assert copied(selection).quotas == (1, 2)
    with pytest.raises(ValueError, match="wrong"):
        copied(selection).check()


def test_what_raises_raises_again():
    def fail():
        raise ValueError("no")

    selection = Selection(torch.arange(3), 5, "x", bound=Deferred(fail))
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            _ = selection.bound
