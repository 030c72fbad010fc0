"""Every method on a model whose vision tower has no attention: it runs, or refuses the tower with a sentence."""

from __future__ import annotations

import pytest
import torch
from helpers import tiny, tiny_photo
from helpers.inside_methods import NAMES as INSIDE
from helpers.inside_methods import method as inside_method
from helpers.manual_pruning import answers
from helpers.methods import BEFORE

import eadp
from eadp.methods import get_method_class, list_methods

KEEP = 6
BY_ATTENTION = [name for name in BEFORE if "vision_attention" in get_method_class(name).needs]
OTHERS = [name for name in BEFORE if name not in BY_ATTENTION]


def attach(name: str, keep: float = KEEP) -> eadp.Pruned:
    exact = {"exact": True} if "exact" in get_method_class(name).default_settings() else {}
    question = "Is there a goldfish or a shark?"
    return eadp.attach(tiny_photo.model(), tiny.tokenizer(), method=name, keep=keep, question=question, **exact)


def test_every_method_is_in_the_matrix():
    assert {*BY_ATTENTION, *OTHERS, *INSIDE} == {*list_methods()} - {"none"}


def test_the_tower_has_a_smaller_view():
    tower = tiny_photo.model().model.vision_tower
    assert len(list(tower._smaller_views(tiny_photo.inputs()["pixel_values"]))) == 1


def test_the_methods_by_attention_are_known():
    assert {"visionzip", "hiprune", "prumerge", "vispruner"} <= {*BY_ATTENTION}
    assert {"eadp", "cdpruner", "divprune", "trim", "topk"} <= {*OTHERS}


@pytest.mark.parametrize("name", BY_ATTENTION)
def test_a_method_by_attention_refuses_the_tower(name):
    with pytest.raises(ValueError, match=f"{name} needs the attention of the vision tower, but EfficientNetLiteModel"):
        attach(name)


@pytest.mark.parametrize("name", OTHERS)
def test_a_method_without_attention_prunes(name):
    model, inputs = tiny_photo.model(), tiny_photo.inputs(images=2)
    plain = model(**inputs).logits
    with attach(name) as pruned:
        _, logits = answers(model, **inputs, max_new_tokens=3)
        first = [selection.indices.tolist() for selection in pruned.last]
        for selection in pruned.last:
            assert selection.total == tiny_photo.TOKENS
            assert selection.tokens_sent == KEEP
        _, uncached = answers(model, **inputs, max_new_tokens=3, use_cache=False)
        torch.testing.assert_close(uncached, logits, rtol=1e-4, atol=1e-4)
        assert [selection.indices.tolist() for selection in pruned.last] == first
    with attach(name, 1.0):
        assert torch.equal(model(**inputs).logits, plain)
    assert torch.equal(model(**inputs).logits, plain)


@pytest.mark.parametrize("name", INSIDE)
def test_a_method_inside_the_language_model_prunes(name):
    model, inputs = tiny_photo.model(), tiny_photo.inputs()
    with eadp.attach(model, method=inside_method(name, 3)) as pruned:
        model(**inputs)
        assert pruned.last[0].tokens_after < tiny_photo.TOKENS
