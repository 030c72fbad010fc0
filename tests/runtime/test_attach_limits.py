"""What cannot be pruned raises an error; what a pruned cache can and cannot do."""

from __future__ import annotations

import pytest
import torch
from helpers import tiny
from helpers.prompts import IMAGES
from helpers.simple_methods import EverySecond, Ragged

import eadp

LLAVA = IMAGES["llava"]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "gemma3", "paligemma"])
def test_a_new_image_where_the_cache_cannot_take_one(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family][:1])
    with eadp.attach(model, method=EverySecond()):
        cache = model(**inputs, use_cache=True).past_key_values
        with pytest.raises(ValueError, match="empty cache"):
            model(**inputs | {"attention_mask": inputs["attention_mask"].repeat(1, 2)}, past_key_values=cache)


def test_chunked_prefill() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA[:1])
    with eadp.attach(model, method=EverySecond()), pytest.raises(ValueError, match="prefill_chunk_size"):
        model.generate(**inputs, max_new_tokens=2, prefill_chunk_size=8)


def test_packed_sequences_and_continuous_batching() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA[:1])
    with eadp.attach(model, method=EverySecond()), pytest.raises(ValueError, match="continuous batching"):
        model(**inputs, cu_seq_lens_q=torch.tensor([0, 5]))
    with eadp.attach(model, method=EverySecond()), pytest.raises(ValueError, match="continuous batching"):
        model(**inputs, past_key_values=object())


def test_features_from_before_attaching() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA[:1])
    early = model.model.get_image_features(inputs.pop("pixel_values"), return_dict=True)
    with eadp.attach(model, method=EverySecond()), pytest.raises(ValueError, match="encode the images again"):
        model(**inputs, mm_encoder_outputs={"image": early})


def test_a_pruned_cache_on_a_detached_model() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA)
    with eadp.attach(model, method=EverySecond()):
        cache = model(**inputs, use_cache=True).past_key_values
    more = {"input_ids": torch.tensor([[5], [6]]), "attention_mask": torch.ones(2, inputs["input_ids"].shape[1] + 1)}
    with pytest.raises(RuntimeError, match="attach again"):
        model(**more, past_key_values=cache)
    with eadp.attach(model, method=EverySecond()):
        model(**more, past_key_values=cache)


def test_a_cache_is_cropped_no_further_than_its_images() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA)
    width = inputs["input_ids"].shape[1]
    first = int((inputs["input_ids"] == model.config.image_token_id).any(0).nonzero().min())
    mask = inputs["attention_mask"]
    with eadp.attach(model, method=Ragged()):
        cache = model(**inputs, use_cache=True).past_key_values
        cache.crop(-3)
        assert cache.get_seq_length() == width - 3
        more = {"input_ids": inputs["input_ids"][:, -3:], "attention_mask": mask, "past_key_values": cache}
        torch.testing.assert_close(model(**more).logits[:, -1], model(**inputs).logits[:, -1], rtol=1e-4, atol=1e-4)
        with pytest.raises(ValueError, match="pruned"):
            cache.crop(first - width)


def test_a_cache_that_is_reset_forgets() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA)
    with eadp.attach(model, method=Ragged()):
        cache = model(**inputs, use_cache=True).past_key_values
        cache.reset()
        assert cache.get_seq_length() == 0
        fresh = model(**inputs, use_cache=True).logits
        torch.testing.assert_close(model(**inputs, past_key_values=cache).logits, fresh, rtol=1e-4, atol=1e-4)
