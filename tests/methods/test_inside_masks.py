"""Cuts between layers under every kind of mask."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import tiny
from helpers.inside_methods import NAMES, Recording, deep, method, with_depth
from helpers.manual_pruning import answers
from helpers.prompts import IMAGES, every_family
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.masking_utils import flash_attention_mask

import eadp
from eadp.runtime.compact import Compaction


def test_eager_attention() -> None:
    """Its additive masks give what sdpa gives: ragged rows, choices, decoding."""
    inputs = tiny.inputs("llava", IMAGES["llava"])
    model = copy.deepcopy(deep("llava"))
    model.set_attn_implementation("eager")
    with eadp.attach(model, method=with_depth("sparsevlm")) as pruned:
        _, logits = answers(model, **inputs)
        kept = [one.indices.tolist() for one in pruned.last]
    with eadp.attach(deep("llava"), method=with_depth("sparsevlm")) as pruned:
        _, expected = answers(deep("llava"), **inputs)
        assert kept == [one.indices.tolist() for one in pruned.last]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@every_family
@pytest.mark.parametrize("name", ["fastv", "sparsevlm"])
def test_right_padding(family: str, name: str) -> None:
    """Rows of different length, padded behind: each is what it is alone, up to the words that it has."""
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family], padding="right")
    with eadp.attach(model, method=method(name)) as pruned:
        together, last = model(**inputs).logits, pruned.last
        alone = [tiny.inputs(family, IMAGES[family][row : row + 1], first=row) for row in range(2)]
        single = [model(**each).logits[0] for each in alone]
    for row in range(2):
        length = alone[row]["input_ids"].shape[1]
        torch.testing.assert_close(together[row, :length], single[row], rtol=1e-4, atol=1e-4)
    assert len(last) == sum(map(len, IMAGES[family]))


@pytest.mark.parametrize("family", ["llava", "llava_next", "qwen2_5_vl", "qwen3_vl", "internvl"])
def test_a_prompt_without_an_image_beside_one_with_one(family: str) -> None:
    model, sizes = tiny.model(family), [IMAGES[family][0], []]
    inputs = tiny.inputs(family, sizes)
    plain = answers(model, **tiny.inputs(family, [[]], first=1))[1]
    with eadp.attach(model, method=method("pyramiddrop")) as pruned:
        _, logits = answers(model, **inputs)
        assert len(pruned.last) == 1
        single = answers(model, **tiny.inputs(family, sizes[:1]))[1]
    torch.testing.assert_close(logits[1:], plain, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits[:1], single, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_that_ends_with_its_image(name: str) -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", IMAGES["llava"][:1])
    end = int((inputs["input_ids"][0] == model.config.image_token_id).nonzero().max()) + 1
    cut = inputs | {key: inputs[key][:, :end] for key in ("input_ids", "attention_mask")}
    recording = Recording(of=method(name))
    with eadp.attach(model, method=recording) as pruned:
        _, logits = answers(model, **cut)
        assert len(pruned.last[0]) == recording.cuts(16, 3)[-1].keep
    with eadp.attach(model, method=recording.frozen()):
        _, uncached = answers(model, **cut, use_cache=False)
    torch.testing.assert_close(uncached, logits, rtol=1e-4, atol=1e-4)


def flash(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any
) -> Any:
    """What flash attention does with its 2-D mask, slowly."""
    length, width = query.shape[2], key.shape[2]
    sees = torch.ones(length, width, dtype=torch.bool).tril(width - length)[None, None]
    if attention_mask is not None:
        sees = sees & attention_mask[:, None, None].bool() | torch.eye(width, dtype=torch.bool)[-length:]
    key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (key, value))
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, sees, scale=settings["scaling"])
    return out.transpose(1, 2).contiguous(), None


@pytest.mark.parametrize("name", NAMES)
def test_flash_attention(name: str) -> None:
    """A stand-in with flash attention's masks gives what sdpa gives: ragged rows, choices, decoding."""
    inputs = tiny.inputs("llava", IMAGES["llava"])
    model = copy.deepcopy(deep("llava"))
    hf.AttentionInterface.register("flash_stand_in", flash)
    hf.AttentionMaskInterface.register("flash_stand_in", flash_attention_mask)
    try:
        model.model.language_model.config._attn_implementation = "flash_stand_in"
        with eadp.attach(model, method=with_depth(name)) as pruned:
            _, logits = answers(model, **inputs)
            kept = [one.indices.tolist() for one in pruned.last]
    finally:
        hf.AttentionInterface._global_mapping.pop("flash_stand_in")
        hf.AttentionMaskInterface._global_mapping.pop("flash_stand_in")
    with eadp.attach(deep("llava"), method=with_depth(name)) as pruned:
        _, expected = answers(deep("llava"), **inputs)
        assert kept == [one.indices.tolist() for one in pruned.last]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_sliding_windows(name: str) -> None:
    """Layers that see everything and layers that see the last nine tokens, cut between them."""
    kind, settings = tiny.CONFIGS["internvl"]
    layers = ["full_attention", "sliding_attention"] * 4
    text = settings["text_config"] | {
        "num_hidden_layers": 8,
        "use_sliding_window": True,
        "sliding_window": 9,
        "layer_types": layers,
    }
    torch.manual_seed(0)
    model = hf.AutoModelForImageTextToText.from_config(kind(**settings | {"text_config": text})).eval()
    model.generation_config.eos_token_id = None
    inputs = tiny.inputs("internvl", IMAGES["internvl"])
    recording = Recording(of=with_depth(name))
    with eadp.attach(model, method=recording):
        _, logits = answers(model, **inputs)
    with eadp.attach(model, method=recording.frozen()):
        _, uncached = answers(model, **inputs, use_cache=False)
        _, static = answers(model, **inputs, cache_implementation="static", disable_compile=True)
    torch.testing.assert_close(uncached, logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(static, logits, rtol=1e-4, atol=1e-4)


@given(st.integers(1, 3), st.integers(4, 9), st.integers(0, 2**32 - 1))
def test_two_cuts_are_one(rows: int, length: int, seed: int) -> None:
    """Shortening twice and lengthening twice, with ragged rows and tokens that change their places, is what the joint
    cut does at once."""
    generator = torch.Generator().manual_seed(seed)
    first_keep = torch.rand(rows, length, generator=generator) < 0.7
    first_keep[:, -1] = True
    first = Compaction.from_mask(first_keep, torch.rand(rows, length, generator=generator))
    second_keep = torch.rand(rows, first.length, generator=generator) < 0.7
    second_keep[:, -1] = True
    second = Compaction.from_mask(second_keep if first.valid is None else second_keep & first.valid)
    both = first.then(second)
    states = torch.randn(rows, length, 2, generator=generator)
    short = second.take_rows(first.take_rows(states))
    there = torch.ones(rows, both.length, dtype=torch.bool) if both.valid is None else both.valid
    assert torch.equal(both.take_rows(states)[there], short[there])
    restored = both.restore(short)
    for row in range(rows):
        kept = both.index[row, there[row]]
        assert torch.equal(restored[row, kept], states[row, kept])
    assert both.dropped == first.dropped + second.dropped
    stayed = torch.zeros(rows, length, dtype=torch.bool)
    for row in range(rows):
        stayed[row, both.index[row, there[row]]] = True
    assert bool(stayed[:, length - both.tail :].all())
