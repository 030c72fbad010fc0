"""Static caches: the same tokens as with a dynamic cache, and a cache that is sized for the pruned prompt."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from helpers import tiny
from helpers.inside_methods import NAMES, generated, method
from helpers.prompts import IMAGES, every_family
from torch import Tensor

import eadp

KEEP = 5
prompts = pytest.mark.parametrize("rows", [1, 2], ids=["unpadded", "padded"])


def pruner(name: str) -> eadp.Method:
    return method(name, KEEP) if name in NAMES else eadp.DivPrune(keep=KEEP)


def kept(pruned: eadp.Pruned) -> list[list[int]]:
    return [selection.indices.tolist() for selection in pruned.last]


@prompts
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_empty_slots_are_not_counted_as_keys(family: str, name: str, rows: int) -> None:
    """Zeros in the empty slots would take part in the softmax, with another share in each head."""
    model = tiny.model(family)
    with eadp.attach(model, method=pruner(name)) as pruned:
        for first in range(4):
            inputs = tiny.inputs(family, IMAGES[family][:rows], first=first)
            model(**inputs, use_cache=True)
            dynamic = kept(pruned)
            model(**inputs, past_key_values=hf.StaticCache(model.config, max_cache_len=300))
            assert kept(pruned) == dynamic


@pytest.mark.parametrize("name", NAMES)
def test_a_new_image_on_a_static_cache_that_is_not_empty(name: str) -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", IMAGES["llava"][:1])
    mask = inputs["attention_mask"]
    runs: list[tuple[list[list[int]], Tensor]] = []
    with eadp.attach(model, method=pruner(name)) as pruned:
        for cache in (hf.DynamicCache(config=model.config), hf.StaticCache(model.config, max_cache_len=100)):
            model(**inputs, past_key_values=cache)
            logits = model(**inputs | {"attention_mask": mask.repeat(1, 2)}, past_key_values=cache).logits
            runs.append((kept(pruned), logits))
    assert runs[0][0] == runs[1][0]
    torch.testing.assert_close(runs[0][1], runs[1][1], rtol=1e-4, atol=1e-4)


@prompts
@every_family
def test_a_cache_for_what_is_kept(family: str, rows: int) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family][:rows])
    with eadp.attach(model, method=pruner("divprune")) as pruned:
        answer = generated(model, inputs)
        cache = pruned.static_cache(max_new_tokens=8)
        assert torch.equal(generated(model, inputs, past_key_values=cache), answer)
        assert pruned.columns is not None
        width = int((pruned.columns & (inputs["attention_mask"] != 0)).sum(1).max())
    slots = [layer.keys.shape[2] for layer in cache.layers if not layer.is_sliding]
    assert slots == [width + 8] * len(slots)


@prompts
@pytest.mark.parametrize("name", NAMES)
def test_deeper_layers_of_the_cache_are_smaller(name: str, rows: int) -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", IMAGES["llava"][:rows])
    with eadp.attach(model, method=pruner(name)) as pruned:
        answer = generated(model, inputs)
        cache = pruned.static_cache(max_new_tokens=8)
        assert torch.equal(generated(model, inputs, past_key_values=cache), answer)
    sizes = [layer.keys.shape[2] for layer in cache.layers]
    assert sizes[0] == inputs["input_ids"].shape[1] + 8
    assert sizes[-1] < sizes[0]


def test_a_cache_that_is_reset_takes_a_prompt_of_another_length() -> None:
    model = tiny.model("llava")
    with eadp.attach(model, method=pruner("divprune")) as pruned:
        cache = pruned.static_cache(max_new_tokens=8)
        for rows in (1, 2):
            inputs = tiny.inputs("llava", IMAGES["llava"][:rows])
            answer = generated(model, inputs)
            assert torch.equal(generated(model, inputs, past_key_values=cache), answer)
            cache.reset()


def test_a_cache_of_transformers_that_is_smaller_than_the_prompt() -> None:
    model, inputs = tiny.model("llava_next"), tiny.inputs("llava_next", IMAGES["llava_next"][:1])
    with eadp.attach(model, method=pruner("divprune")) as pruned:
        answer = generated(model, inputs)
        assert pruned.columns is not None
        size = int(pruned.columns.sum()) + 8
        assert size < inputs["input_ids"].shape[1]
        assert torch.equal(generated(model, inputs, past_key_values=hf.StaticCache(model.config, size)), answer)


@pytest.mark.parametrize(
    ("rows", "size", "message"),
    [(2, 50, "does not show the whole prompt; use pruned.static_cache"), (1, 10, "the pruned prompt has 20")],
    ids=["padded", "too small"],
)
def test_a_cache_that_is_too_small(rows: int, size: int, message: str) -> None:
    model, inputs = tiny.model("llava_next"), tiny.inputs("llava_next", IMAGES["llava_next"][:rows])
    cache = hf.StaticCache(model.config, size)
    with eadp.attach(model, method=pruner("divprune")), pytest.raises(ValueError, match=message):
        generated(model, inputs, past_key_values=cache)


@pytest.mark.parametrize("size", [0, 1.5, True])
def test_no_room_for_new_tokens(size: Any) -> None:
    with (
        eadp.attach(tiny.model("llava"), method=pruner("divprune")) as pruned,
        pytest.raises(ValueError, match="room for at least one new token"),
    ):
        pruned.static_cache(size)
