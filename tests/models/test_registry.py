"""Families are imported one by one, and each says by itself what it lacks."""

from __future__ import annotations

import re
import sys

import pytest
from helpers import tiny
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl

from eadp import compat
from eadp.models import FAMILIES, FamilyEntry, adapter_of


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_family_is_listed_under_its_own_model_types(model_type: str) -> None:
    assert model_type in FAMILIES[model_type].load().geometry_class.model_types


def test_a_missing_symbol_breaks_only_the_family_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(modeling_qwen2_5_vl, "get_vision_window_index")
    monkeypatch.delitem(sys.modules, "eadp.models.qwen", raising=False)
    monkeypatch.setattr(compat, "installed_version", lambda distribution: "5.99.1")
    with pytest.raises(ImportError) as caught:
        adapter_of(tiny.model("qwen2_5_vl"))
    assert str(caught.value) == (
        "Qwen2.5-VL cannot be used: transformers 5.99.1 has no get_vision_window_index in "
        "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl; eadp was tested with transformers "
        f"{compat.TRANSFORMERS_FLOOR} to {compat.TRANSFORMERS_TESTED}"
    )
    assert adapter_of(tiny.model("llava_next")).config.model_type == "llava_next"


def test_a_family_that_is_too_new_names_the_release_it_needs() -> None:
    entry = FamilyEntry("Qwen9-VL", "eadp.models.qwen", "Qwen3VLAdapter", since="97.5")
    with pytest.raises(ImportError, match=re.escape("Qwen9-VL needs transformers 97.5 or newer; ")):
        entry.load()
