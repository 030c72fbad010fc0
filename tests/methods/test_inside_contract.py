"""Methods inside the language model: what is told, what is refused, and that nothing is left behind."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.inside_methods import NAMES, method
from helpers.manual_pruning import answers
from helpers.prompts import IMAGES, every_family
from helpers.simple_methods import EverySecond

import eadp
from eadp.core import Selection
from eadp.methods.fastv import FastV
from eadp.methods.inside import Cut
from eadp.methods.pyramiddrop import PyramidDrop
from eadp.methods.sparsevlm import SparseVLM


def test_one_budget_over_all_images_of_a_prompt() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", IMAGES["llava"])
    with eadp.attach(model, method=FastV(keep=6), budget_over="prompt") as pruned:
        model(**inputs)
    one, two, three = pruned.last
    assert len(one) == 6
    assert len(two) + len(three) == 6
    assert all(part.per_layer[0] == 16 for part in pruned.last)


def test_newlines_go_with_their_rows() -> None:
    model, inputs = tiny.model("llava_next"), tiny.inputs("llava_next", IMAGES["llava_next"][:1])
    for newlines in (None, "kept rows", "all", "none"):
        with eadp.attach(model, method=FastV(keep=1), newlines=newlines) as pruned:
            model(**inputs)
        (image,), (chosen,) = pruned.images, pruned.last
        row = int(image.newlines[chosen.indices[0]] >= 0)
        left = {"all": len(image.newline_slots), "none": 0}.get(newlines, row)
        assert int((~pruned.columns).sum()) == image.length - 1 - left
        assert (chosen.newlines, chosen.tokens_sent) == (left, 1 + left)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3", "llava"])
def test_hidden_states_come_back_at_the_length_of_the_prompt(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    plain = model(**inputs, output_hidden_states=True).hidden_states
    with eadp.attach(model, method=[EverySecond(), method("pyramiddrop", 2)]):
        states = model(**inputs, output_hidden_states=True).hidden_states
    assert [each.shape for each in states] == [each.shape for each in plain]


@every_family
def test_detaching_leaves_nothing(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    modules, before = traces(model), answers(model, **inputs)[1]
    for name in NAMES:
        with eadp.attach(model, method=method(name)):
            answers(model, **inputs)
    assert torch.equal(answers(model, **inputs)[1], before)
    assert traces(model) == modules


def traces(model: Any) -> list[Any]:
    """What hooks and overrides would leave on a model."""
    return [({*vars(each)}, len(each._forward_hooks), len(each._forward_pre_hooks)) for each in model.modules()]


def test_an_error_on_the_way_leaves_nothing_for_the_next_call() -> None:
    class Failing(FastV):
        def choose(self, cut: Cut, view: Any) -> Selection:
            raise ZeroDivisionError

    model, inputs = tiny.model("llava"), tiny.inputs("llava", IMAGES["llava"])
    text_only = tiny.inputs("llava", [[], []])
    expected = model(**text_only).logits
    with eadp.attach(model, method=Failing(keep=2)):
        with pytest.raises(ZeroDivisionError):
            model(**inputs)
        assert torch.equal(model(**text_only).logits, expected)
    assert model.config.text_config._attn_implementation == "sdpa"
    with eadp.attach(model, method=[EverySecond(), SparseVLM(keep=1)]):
        with pytest.raises(ValueError, match="lowest it can reach"):
            model(**inputs)
        assert torch.equal(model(**text_only).logits, expected)


def test_what_cannot_be_done_is_told() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", IMAGES["llava"][:1])
    for chain in ([FastV(keep=2), EverySecond()], [EverySecond()], [EverySecond(), EverySecond()]):
        with pytest.raises(ValueError, match="one that prunes before the language model and one that prunes inside"):
            eadp.attach(model, method=chain)
    with pytest.raises(TypeError, match="give keep to the methods of the list"):
        eadp.attach(model, method=[EverySecond(), PyramidDrop()], keep=3)
    with pytest.raises(ValueError, match="fastv has no setting shares; it has budget, fold, keep, layers"):
        eadp.attach(model, method=FastV(keep=2), shares=(1,))
    with (
        eadp.attach(model, method="sparsevlm", keep=2, budget="layer_mean"),
        pytest.raises(ValueError, match=r"lowest it can reach is 7\.0, with 1 left"),
    ):
        model(**inputs)
    with eadp.attach(model, method="fastv", keep=2):
        cache = model(**inputs).past_key_values
    following = {"input_ids": torch.tensor([[40]]), "attention_mask": torch.ones(1, inputs["input_ids"].shape[1] + 1)}
    with pytest.raises(RuntimeError, match="attach again"):
        model(**following, past_key_values=cache)
    with (
        eadp.attach(model, method=EverySecond()),
        pytest.raises(ValueError, match="to continue from it, attach a method"),
    ):
        model(**following, past_key_values=cache)
    training = copy.deepcopy(model)
    training.gradient_checkpointing_enable()
    training.train()
    with eadp.attach(training, method="fastv", keep=2), pytest.raises(ValueError, match="gradient checkpointing off"):
        training(**inputs)


def test_a_method_that_keeps_another_number_is_found_out() -> None:
    class Greedy(FastV):
        def choose(self, cut: Cut, view: Any) -> Selection:
            return super().choose(Cut(cut.layer, cut.keep + 1), view)

    model, inputs = tiny.model("llava"), tiny.inputs("llava", IMAGES["llava"][:1])
    with eadp.attach(model, method=Greedy(keep=2)), pytest.raises(ValueError, match="must keep 2 of 16 tokens"):
        model(**inputs)
