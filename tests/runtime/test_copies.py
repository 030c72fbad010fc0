"""Copies and pickles of an attached model are unpruned models; those of a pruned KV cache continue as it does."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.prompts import IMAGES
from helpers.simple_methods import EverySecond, Ragged
from torch import Tensor, nn
from transformers import DynamicCache, StaticCache

import eadp
from eadp.methods import FastV, HiPrune, PyramidDrop

SIZES = [[(28, 28)], [(28, 28), (28, 28)]]
CUT = {"budget": "after_prune", "keep": 3}
METHODS = [Ragged(), HiPrune(keep=3), FastV(**CUT), [Ragged(), PyramidDrop(**CUT)]]


def names(method: Any) -> str:
    return "+".join(each.name for each in method) if isinstance(method, list) else method.name


def saved(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def traces(model: nn.Module) -> list[Any]:
    return [
        ({*vars(each)} - {"_compiled_call_impl"}, len(each._forward_hooks), len(each._forward_pre_hooks))
        for each in model.modules()
    ]


@pytest.mark.parametrize("method", METHODS, ids=names)
@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled, saved])
def test_a_copy_of_an_attached_model_is_an_unpruned_model(method: Any, duplicate: Callable[..., Any]) -> None:
    inputs = tiny.inputs("llava", SIZES)
    # One that never ran: transformers cannot pickle a model that did.
    model, stock = tiny.model.__wrapped__("llava"), tiny.model("llava")(**inputs).logits
    untouched = traces(model)
    with eadp.attach(model, method=method) as pruned:
        twin = duplicate(model)
        assert traces(twin) == untouched
        logits = model(**inputs).logits
        assert not torch.equal(logits, stock)
        assert torch.equal(twin(**inputs).logits, stock)
        with torch.no_grad():
            for weight in twin.model.vision_tower.parameters():
                weight.mul_(1.5)
        other = twin(**inputs).logits
        assert not torch.equal(other, stock)  # It encodes with its own tower.
        with eadp.attach(twin, method=EverySecond()):
            assert not torch.equal(twin(**inputs).logits, other)
        assert torch.equal(model(**inputs).logits, logits)
        assert len(pruned.last) == 3
    assert torch.equal(model(**inputs).logits, stock)
    assert torch.equal(twin(**inputs).logits, other)


def test_a_copy_keeps_the_hooks_of_others() -> None:
    model, calls = copy.deepcopy(tiny.model("llava")), []
    model.model.language_model.register_forward_pre_hook(lambda *_: calls.append("called"))
    with eadp.attach(model, method=EverySecond()):
        twin = copy.deepcopy(model)
    twin(**tiny.inputs("llava", SIZES))
    assert calls == ["called"]


def prefilled(model: Any, family: str, cache: Any = None) -> tuple[Any, dict[str, Tensor]]:
    """A pruned cache, and the arguments of a call that continues from it."""
    inputs = tiny.inputs(family, IMAGES[family])
    cache = model(**inputs, use_cache=True, **({} if cache is None else {"past_key_values": cache})).past_key_values
    rows = len(inputs["input_ids"])
    step = {
        "input_ids": torch.full((rows, 3), 50),
        "attention_mask": torch.nn.functional.pad(inputs["attention_mask"], (0, 3), value=1),
    }
    if family.startswith("qwen"):
        step["position_ids"] = torch.full((3, rows, 3), 70) + torch.arange(3)
    return cache, step


@pytest.mark.parametrize("family", ["llava", "qwen3_vl", "gemma3"])
@pytest.mark.parametrize("method", METHODS, ids=names)
@pytest.mark.parametrize("positions", ["keep", "renumber"])
def test_a_copied_or_pickled_cache_continues_exactly(family: str, method: Any, positions: Any) -> None:
    model = tiny.model(family)
    with eadp.attach(model, method=method, positions=positions):
        cache, step = prefilled(model, family)
        assert type(cache) is DynamicCache
        copies = [copy.deepcopy(cache), pickled(cache), pickled(copy.deepcopy(cache))]
        logits = model(**step, past_key_values=cache).logits
        for each in copies:
            assert each.get_seq_length() == cache.get_seq_length() - 3
            assert torch.equal(model(**step, past_key_values=each).logits, logits)
            if not any(each.is_sliding):
                each.crop(-3)
                assert torch.equal(model(**step, past_key_values=each).logits, logits)


def test_a_pickled_static_cache_continues_exactly() -> None:
    model = tiny.model("llava")
    with eadp.attach(model, method=EverySecond()):
        inputs = tiny.inputs("llava", SIZES[:1])
        cache = model(**inputs, past_key_values=StaticCache(config=model.config, max_cache_len=64)).past_key_values
        assert type(cache) is StaticCache
        twin, step = pickled(cache), torch.tensor([[50]])
        logits = model(input_ids=step, past_key_values=cache).logits
        assert torch.equal(model(input_ids=step, past_key_values=twin).logits, logits)


@pytest.mark.parametrize("method", METHODS[:3], ids=names)
def test_the_rows_of_a_copied_cache_change_with_it(method: Any) -> None:
    model = tiny.model("llava")
    with eadp.attach(model, method=method, positions="renumber"):
        cache, step = prefilled(model, "llava")
        swapped, repeated, selected = (copy.deepcopy(cache) for _ in range(3))
        swapped.reorder_cache(torch.tensor([1, 0]))
        repeated.batch_repeat_interleave(2)
        selected.batch_select_indices(torch.tensor([1]))
        logits = model(**step, past_key_values=cache).logits

        def continued(changed: Any, rows: list[int]) -> None:
            arguments = {name: value[rows] for name, value in step.items()}
            torch.testing.assert_close(model(**arguments, past_key_values=changed).logits, logits[rows])

        continued(swapped, [1, 0])
        continued(repeated, [0, 0, 1, 1])
        continued(selected, [1])


def test_a_reset_cache_is_empty() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", SIZES)
    with eadp.attach(model, method=Ragged()):
        logits = model(**inputs).logits
        cache, _ = prefilled(model, "llava")
        cache.reset()
        assert (cache.get_seq_length(), cache.get_query_offset()) == (0, 0)
        assert torch.equal(model(**inputs, past_key_values=cache).logits, logits)


def test_a_pruned_cache_needs_a_pruned_model() -> None:
    model = tiny.model("llava")
    with eadp.attach(model, method=Ragged()) as pruned:
        cache, step = prefilled(model, "llava")
        twin = pickled(cache)
        logits = model(**step, past_key_values=copy.deepcopy(cache)).logits
    for each in (cache, twin):
        with pytest.raises(RuntimeError, match="filled while the model was pruned"):
            model(**step, past_key_values=each)
    with pruned:
        assert torch.equal(model(**step, past_key_values=twin).logits, logits)


@pytest.mark.parametrize("method", METHODS, ids=names)
def test_a_cache_is_freed_without_the_garbage_collector(method: Any) -> None:
    model = tiny.model("llava")
    gc.disable()
    try:
        with eadp.attach(model, method=method):
            cache, step = prefilled(model, "llava")
            model(**step, past_key_values=cache)
            alive = weakref.ref(cache), weakref.ref(cache.layers[0])
            del cache
            assert [each() for each in alive] == [None, None]
    finally:
        gc.enable()
