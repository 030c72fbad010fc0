"""One handle for many settings: they change while the model is attached, and a detached handle attaches again."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.manual_pruning import answers
from helpers.simple_methods import EverySecond, Guide, Nearest, Ragged
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import eadp
from eadp.methods import FastV
from eadp.models import guides

SIZES = [[(28, 28)], [(28, 28), (28, 28)]]
CHANGES: list[dict[str, Any]] = [
    {"method": "divprune", "keep": 5},
    {"method": "visionzip", "keep": 4, "positions": "renumber"},
    {"method": "pool", "keep": 4},
    {"method": "fastv", "keep": 3, "budget": "after_prune"},
    {"method": "pyramiddrop", "keep": 3, "budget": "after_prune"},
    {"method": [Ragged(), FastV(keep=2, budget="after_prune")]},
    {"method": Nearest(keep=3), "question": "where?", "guide": Guide("tower")},
    {"method": "divprune", "keep": 9, "budget_over": "prompt"},
]


def test_a_second_block_attaches_again() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", SIZES)
    stock = model(**inputs).logits
    with eadp.attach(model, method=EverySecond()) as pruned:
        first = model(**inputs).logits
        assert pruned.attached
    assert not pruned.attached
    assert [len(selection) for selection in pruned.last] == [8, 8, 8]
    assert torch.equal(model(**inputs).logits, stock)
    with pruned:
        assert pruned.attached
        assert (pruned.last, pruned.images, pruned.columns) == ([], [], None)
        assert torch.equal(model(**inputs).logits, first)
        assert len(pruned.last) == 3
    assert torch.equal(model(**inputs).logits, stock)


def test_a_handle_does_not_attach_where_another_one_is() -> None:
    model = tiny.model("llava")
    with eadp.attach(model, method=EverySecond()) as pruned:
        pass
    with eadp.attach(model, method=Ragged()) as other:
        with pytest.raises(RuntimeError, match="already being pruned"), pruned:
            pass
        pruned.detach()
        assert other.attached


def test_padding_is_kept_again_when_a_handle_attaches_again() -> None:
    model, processor = tiny.model("llava_next"), tiny.processor("llava_next")
    inputs = tiny.inputs("llava_next", [[(30, 50)]])
    with eadp.attach(model, processor, method=EverySecond(), unpad=False) as pruned:
        pass
    stock = model.base_model.get_image_features(inputs["pixel_values"], inputs["image_sizes"]).pooler_output[0]
    with pruned:
        padded = model.base_model.get_image_features(inputs["pixel_values"], inputs["image_sizes"]).pooler_output[0]
    assert len(padded) > len(stock)


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: str(changes["method"])[:30])
@pytest.mark.parametrize("way", ["set", "using"])
def test_changed_settings_are_those_of_a_new_attachment(changes: dict[str, Any], way: str) -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", SIZES)
    with eadp.attach(model, **changes) as pruned:
        expected = answers(model, **inputs)[1], [selection.indices.tolist() for selection in pruned.last]
    with eadp.attach(model, method=EverySecond()) as pruned:
        before = answers(model, **inputs)[1]
        if way == "set":
            pruned.set(**changes)
            changed = answers(model, **inputs)[1]
        else:
            with pruned.using(**changes):
                changed = answers(model, **inputs)[1]
        assert torch.equal(changed, expected[0])
        assert [selection.indices.tolist() for selection in pruned.last] == expected[1]
        if way == "set":
            pruned.set(method=EverySecond(), question=None, guide=None, positions=None, budget_over="image")
        assert torch.equal(answers(model, **inputs)[1], before)


def test_a_budget_replaces_the_former_one() -> None:
    model, inputs = tiny.model("qwen2_5_vl"), tiny.inputs("qwen2_5_vl", [[(24, 32)]])
    guide = Guide("language")
    with eadp.attach(model, method="eadp", keep=4, guide=guide, question="what?") as pruned:
        pruned.set(keep=3)
        model(**inputs)
        assert len(pruned.last[0]) == 3
        with pruned.using(coverage=0.9):
            assert (pruned.method.settings["keep"], pruned.method.settings["coverage"]) == (None, 0.9)
            with pruned.using(keep=0.5, beta=3.0):
                assert (pruned.method.settings["keep"], pruned.method.settings["coverage"]) == (0.5, None)
        assert pruned.method.settings["keep"] == 3
        with pruned.using(method=eadp.EADP(keep=4)), pruned.using(coverage=0.9):
            assert (pruned.method.settings["keep"], pruned.method.settings["coverage"]) == (None, 0.9)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"unpad": False}, TypeError, "unpad cannot be changed while a model is attached"),
        ({"method": None}, TypeError, "method=None is no method"),
        ({"steps": 3}, ValueError, "test_every_second has no setting steps"),
        ({"method": "nothing"}, ValueError, "unknown method"),
        ({"positions": "middle"}, ValueError, "positions"),
        ({"method": Nearest(keep=3)}, ValueError, "processor"),
    ],
)
def test_wrong_changes_change_nothing(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", SIZES)
    with eadp.attach(model, method=EverySecond()) as pruned:
        logits = model(**inputs).logits
        with pytest.raises(error, match=says):
            pruned.set(**changes)
        with pytest.raises(error, match=says), pruned.using(**changes):
            pass
        assert torch.equal(model(**inputs).logits, logits)


def test_settings_of_a_detached_handle_wait_for_it_to_attach() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", SIZES)
    with eadp.attach(model, method=EverySecond()) as pruned:
        pass
    pruned.set(method="fastv", keep=3, budget="after_prune")
    with pruned:
        model(**inputs)
    assert [len(selection) for selection in pruned.last] == [3, 3, 3]


def test_a_block_with_other_settings_may_attach() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", SIZES)
    with eadp.attach(model, method=EverySecond()) as pruned:
        pass
    with pruned.using(method="fastv", keep=3, budget="after_prune"), pruned:
        model(**inputs)
        assert [len(selection) for selection in pruned.last] == [3, 3, 3]


def test_images_encoded_for_a_method_that_needs_less_are_refused() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", SIZES[:1])
    with eadp.attach(model, method=EverySecond()) as pruned:
        output = model.base_model.get_image_features(inputs.pop("pixel_values"), return_dict=True)
        encoded = inputs | {"mm_encoder_outputs": {"image": output}}
        model(**encoded)
        with pytest.raises(ValueError, match="were encoded for another method"), pruned.using(method="hiprune", keep=3):
            model(**encoded)
        with pruned.using(method="divprune", keep=3):
            model(**encoded)
        assert len(pruned.last[0]) == 3


def test_attachments_share_a_guide_as_long_as_the_model_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    original = guides.guide_for

    def guide_for(*args: Any, **kwargs: Any) -> Any:
        built.append(original(*args, **kwargs))
        return built[-1]

    monkeypatch.setattr(guides, "guide_for", guide_for)
    kept = tiny.model("qwen2_5_vl")
    model = type(kept)(copy.deepcopy(kept.config)).eval()
    processor, inputs = tiny.processor("qwen2_5_vl"), tiny.inputs("qwen2_5_vl", [[(24, 32)]])
    with eadp.attach(model, processor, keep=4, question="what?") as pruned:
        pruned.set(keep=3)
        with pruned.using(method="topk", keep=2):
            model(**inputs)
    with eadp.attach(model, processor, keep=4) as again:
        assert again.guide is pruned.guide is built[0]
    assert len(built) == 1
    with eadp.attach(model, tiny.processor("llava"), keep=4) as other:
        assert other.guide is not built[0]
    model.resize_token_embeddings(len(kept.get_input_embeddings().weight) + 8)
    with eadp.attach(model, processor, keep=4) as resized:
        assert resized.guide.embeddings is model.get_input_embeddings()
    guide = weakref.ref(built[0])
    built.clear()
    del model, pruned, again, other, resized
    gc.collect()
    assert guide() is None


@pytest.mark.parametrize("method", ["hiprune", "fastv"])
def test_a_model_that_nobody_detached_is_freed(method: str) -> None:
    registered = set(ALL_ATTENTION_FUNCTIONS)
    model = tiny.model.__wrapped__("llava")
    eadp.attach(model, method=method, keep=3)
    model(**tiny.inputs("llava", SIZES))
    assert set(ALL_ATTENTION_FUNCTIONS) > registered
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
    assert set(ALL_ATTENTION_FUNCTIONS) == registered


@pytest.mark.parametrize("method", ["visionzip", "mmtok", "fastv"])
def test_the_states_of_the_vision_tower_are_freed_with_the_call(method: str) -> None:
    model = tiny.model("llava")
    states: list[weakref.ref[Any]] = []

    def remember(tower: Any, args: Any, output: Any) -> None:
        states.extend(weakref.ref(each) for each in output.hidden_states or (output.last_hidden_state,))

    guide = guides.EmbeddingGuide(model.get_input_embeddings(), tiny.tokenizer()) if method == "mmtok" else None
    hook = model.base_model.vision_tower.register_forward_hook(remember)
    try:
        with eadp.attach(model, tiny.tokenizer(), method=method, keep=4, guide=guide) as pruned:
            model(**tiny.inputs("llava", [[(28, 28)]]))
            gc.collect()
            assert len(pruned.images) == 1
            assert [each for each in states if each() is not None] == []
    finally:
        hook.remove()
    assert states
