"""Every way of generating from a prompt that is cut between layers, and chains of two methods."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from helpers import tiny
from helpers.inside_methods import NAMES, Recording, deep, generated, method, with_depth
from helpers.manual_pruning import SPECIAL_IDS, answers
from helpers.methods import BEFORE
from helpers.prompts import IMAGES, every_family
from helpers.simple_methods import EverySecond, Guide, Pairs, Ragged, guide_of

import eadp
from eadp.methods import get_method
from eadp.methods.pyramiddrop import PyramidDrop


@every_family
@pytest.mark.parametrize("name", ["fastv", "pyramiddrop"])
def test_assisted_by_prompt_lookup(family: str, name: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family][:1])
    with eadp.attach(model, method=method(name)):
        greedy = generated(model, inputs)
        assert torch.equal(generated(model, inputs, prompt_lookup_num_tokens=3), greedy)


def test_assisted_by_another_model() -> None:
    model, inputs = deep("llava"), tiny.inputs("llava", IMAGES["llava"][:1])
    with eadp.attach(model, method=with_depth("pyramiddrop")):
        greedy = generated(model, inputs)
        assert torch.equal(generated(model, inputs, assistant_model=tiny.model("llava", seed=1)), greedy)


@every_family
def test_sampling(family: str) -> None:
    """Two samples a prompt, drawn anew from the whole sequence with the choice held fast."""
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    recording = Recording(of=method("fastv"))
    drawn = []
    for use_cache in (True, False):
        with eadp.attach(model, method=recording if use_cache else recording.frozen()):
            torch.manual_seed(0)
            drawn.append(
                generated(model, inputs, do_sample=True, num_return_sequences=2, use_cache=use_cache, max_new_tokens=4)
            )
    assert torch.equal(*drawn)


@every_family
@pytest.mark.parametrize("rows", [1, 2])
def test_second_turn_on_the_same_cache(family: str, rows: int) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family][:rows])
    recording = Recording(of=method("pyramiddrop"))
    with eadp.attach(model, method=recording):
        first = model.generate(
            **inputs, max_new_tokens=4, do_sample=False, suppress_tokens=SPECIAL_IDS, return_dict_in_generate=True
        )
    turn = torch.randint(32, 200, (rows, 5), generator=torch.Generator().manual_seed(3))
    ids = torch.cat([first.sequences, turn], dim=1)
    more = ids.shape[1] - inputs["input_ids"].shape[1]
    fills = {"attention_mask": 1, "mm_token_type_ids": 0, "token_type_ids": int(family == "paligemma")}
    grown = {
        name: torch.cat([value, torch.full((rows, more), fill)], dim=1)
        for name, fill in fills.items()
        if (value := inputs.get(name)) is not None
    }
    with eadp.attach(model, method=recording.frozen()):
        _, at_once = answers(model, **inputs | grown | {"input_ids": ids})
        continued = {"input_ids": ids, "attention_mask": grown["attention_mask"]}
        _, later = answers(model, **continued, past_key_values=first.past_key_values)
    torch.testing.assert_close(later, at_once, rtol=1e-4, atol=1e-4)


# Qwen's models count positions by the rows of their last prompt: their rows stay as they are.
@pytest.mark.parametrize("family", [family for family in tiny.FAMILIES if "qwen" not in family])
def test_rows_of_a_cache_may_be_chosen_and_repeated(family: str) -> None:
    """The prompts are of different length, so each layer's padding has to move with its row."""
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    word = torch.tensor([[40], [50]])
    mask = torch.cat([inputs["attention_mask"], torch.ones(2, 1, dtype=torch.long)], dim=1)
    order = torch.tensor([1, 1, 0, 0])
    with eadp.attach(model, method=method("pyramiddrop")):
        caches = [model(**inputs, use_cache=True).past_key_values for _ in range(3)]
        expected = model(input_ids=word, attention_mask=mask, past_key_values=caches[0]).logits
        caches[1].batch_repeat_interleave(2)
        caches[1].reorder_cache(torch.tensor([2, 3, 0, 1]))
        caches[2].batch_select_indices(order)
        for cache in caches[1:]:
            moved = model(input_ids=word[order], attention_mask=mask[order], past_key_values=cache).logits
            torch.testing.assert_close(moved, expected[order], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llava", "llava_next", "internvl"])
def test_a_cache_may_be_cropped_behind_its_pictures(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family][:1])
    length = inputs["input_ids"].shape[1]
    following = {"input_ids": torch.tensor([[40]]), "attention_mask": torch.ones(1, length - 2, dtype=torch.long)}
    recording = Recording(of=method("pyramiddrop"))
    with eadp.attach(model, method=recording):
        cache = model(**inputs, use_cache=True).past_key_values
        cache.crop(-3)
        assert [cache.get_seq_length(layer) for layer in range(3)] == [length - 3] * 3
        cropped = model(**following, past_key_values=cache).logits[:, -1]
    ids = torch.cat([inputs["input_ids"][:, :-3], torch.tensor([[40]])], dim=1)
    short = {key: value[:, :-2] for key, value in inputs.items() if value.shape == inputs["input_ids"].shape}
    with eadp.attach(model, method=recording.frozen()):
        at_once = model(**inputs | short | {"input_ids": ids}).logits[:, -1]
        torch.testing.assert_close(cropped, at_once, rtol=1e-4, atol=1e-4)
        with pytest.raises(ValueError, match="some before that were pruned"):
            cache.crop(-(length - 5))


@pytest.mark.parametrize("family", ["llava", "llava_next", "llava_onevision"])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_second_image_on_the_same_cache(family: str, rows: int, name: str) -> None:
    """The layers hold unequally many tokens when the second image comes."""
    model, sizes = tiny.model(family), [size[:1] for size in IMAGES[family][:rows]]
    one, two = (tiny.inputs(family, sizes, first=first) for first in (0, 5))
    both = {key: torch.cat([one[key], two[key]], dim=1) for key in ("input_ids", "attention_mask")}
    for key in set(one) - {*both, "batch_num_images"}:
        both[key] = torch.stack([one[key], two[key]], dim=1).flatten(0, 1)
    recording = Recording(of=method(name))
    with eadp.attach(model, method=recording):
        cache = hf.DynamicCache(config=model.config)
        model(**one, past_key_values=cache)
        lengths = [cache.get_query_offset(layer) for layer in range(3)]
        assert lengths[0] > lengths[-1]
        assert [cache.get_seq_length(layer) for layer in range(3)] == [one["input_ids"].shape[1]] * 3
        late = model(**two | {"attention_mask": both["attention_mask"]}, past_key_values=cache).logits[:, -1]
        assert cache.get_seq_length() == both["input_ids"].shape[1]
    # From image, cut, prompt to cut, prompt, image: the order in which they are chosen at once.
    choices = [recording.log[start::rows] for start in range(rows)]
    cuts = len(choices[0]) // 2
    recording.log[:] = [row[image * cuts + cut] for cut in range(cuts) for row in choices for image in (0, 1)]
    with eadp.attach(model, method=recording.frozen()):
        at_once = model(**both).logits[:, -1]
    torch.testing.assert_close(late, at_once, rtol=1e-4, atol=1e-4)


@every_family
@pytest.mark.parametrize("before", [EverySecond(), Ragged(), Pairs()], ids=["half", "ragged", "merged"])
def test_chains_prune_before_and_inside(family: str, before: Any) -> None:
    """The accounts add up, the cache changes nothing, and an idle second method leaves what the first does alone."""
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    with eadp.attach(model, method=before) as pruned:
        _, alone = answers(model, **inputs)
        came = pruned.last
    with eadp.attach(model, method=[before, method("pyramiddrop", 1.0)]):
        assert torch.equal(answers(model, **inputs)[1], alone)
    recording = Recording(of=method("pyramiddrop", 2))
    with eadp.attach(model, method=[before, recording]) as pruned:
        _, logits = answers(model, **inputs)
        last = pruned.last
    for first, both in zip(came, last, strict=True):
        assert both.total == first.total
        assert {*both.indices.tolist()} <= {*first.indices.tolist()}
        assert both.per_layer[0] == len(first)
        assert both.tokens_after == min(2, len(first))
        assert both.method == f"{first.method}+pyramiddrop"
    with eadp.attach(model, method=[before, recording.frozen()]):
        _, uncached = answers(model, **inputs, use_cache=False)
    torch.testing.assert_close(uncached, logits, rtol=1e-4, atol=1e-4)


def test_a_chain_with_eadp() -> None:
    """EADP keeps 8 of 16 tokens, PyramidDrop 4, 2 and 1 of these: (8 + 8 + 4 + 4 + 2 + 2 + 1 + 1)/8 = 3.75."""
    model, inputs = deep("llava"), tiny.inputs("llava", IMAGES["llava"])
    chain = [eadp.EADP(keep=8), PyramidDrop()]
    with eadp.attach(model, method=chain, guide=Guide("vision"), question="what is it?") as pruned:
        answers(model, **inputs)
    for one in pruned.last:
        assert one.method == "eadp+pyramiddrop"
        assert one.layers == ((2, 4), (4, 2), (6, 1))
        assert (one.total, one.tokens_after, one.tokens_layer_mean) == (16, 1, 3.75)
        assert one.relevance is not None
        assert "8 tokens, 4 from layer 2 of 8 on, 2 from layer 4 of 8 on, 1 from layer 6 of 8 on" in one.notes


@pytest.mark.parametrize("name", BEFORE)
@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
def test_every_method_before_may_have_one_inside_after_it(family: str, name: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    before = get_method(name, keep=0.5).with_exact_count()
    options: dict[str, Any] = {"guide": guide_of(family, type(before)), "question": "Which one?"}
    recording = Recording(of=method("sparsevlm", 2))
    with eadp.attach(model, method=[before, recording], **options) as pruned:
        _, logits = answers(model, **inputs)
        assert all(one.tokens_after == 2 <= one.per_layer[0] < one.total for one in pruned.last)
    with eadp.attach(model, method=[before, recording.frozen()], **options):
        _, uncached = answers(model, **inputs, use_cache=False)
    torch.testing.assert_close(uncached, logits, rtol=1e-4, atol=1e-4)
