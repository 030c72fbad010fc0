"""Every way to generate from a pruned prompt, and forward with labels."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import tiny
from helpers.manual_pruning import SPECIAL_IDS, answers, shortened
from helpers.prompts import IMAGES, every_family
from helpers.simple_methods import EverySecond, Pairs, Ragged
from torch import Tensor

import eadp


def pruning(family: str, **settings: Any) -> eadp.Pruned:
    return eadp.attach(tiny.model(family), method=Ragged(), **settings)


def generate(family: str, inputs: dict[str, Any], **settings: Any) -> Tensor:
    model = tiny.model(family)
    defaults = {"max_new_tokens": 6, "do_sample": False, "suppress_tokens": SPECIAL_IDS}
    return model.generate(**inputs, **defaults | settings)[:, inputs["input_ids"].shape[1] :]


@every_family
@pytest.mark.parametrize("positions", ["keep", "renumber"])
def test_beams(family: str, positions: str) -> None:
    inputs = tiny.inputs(family, IMAGES[family])
    with pruning(family, positions=positions) as pruned:
        beams = generate(family, inputs, num_beams=3, num_return_sequences=2)
        assert len(pruned.last) == sum(map(len, IMAGES[family]))
        assert torch.equal(beams, generate(family, inputs, num_beams=3, num_return_sequences=2, use_cache=False))
        for row in range(2):
            alone = tiny.inputs(family, IMAGES[family][row : row + 1], first=row)
            single = generate(family, alone, num_beams=3, num_return_sequences=2)
            assert torch.equal(single, beams[2 * row : 2 * row + 2])


@every_family
def test_sampling(family: str) -> None:
    inputs = tiny.inputs(family, IMAGES[family])
    with pruning(family):
        drawn = []
        for use_cache in (True, False):
            torch.manual_seed(0)
            drawn.append(generate(family, inputs, do_sample=True, num_return_sequences=2, use_cache=use_cache))
    assert torch.equal(*drawn)


@every_family
def test_streaming(family: str) -> None:
    class Streamer(hf.generation.BaseStreamer):
        def __init__(self) -> None:
            self.tokens: list[int] = []

        def put(self, value: Tensor) -> None:
            self.tokens += value.flatten().tolist()

        def end(self) -> None:
            self.tokens.append(-1)

    inputs, streamer = tiny.inputs(family, IMAGES[family][:1]), Streamer()
    with pruning(family):
        told = generate(family, inputs)
        generate(family, inputs, streamer=streamer)
    assert streamer.tokens == [*inputs["input_ids"][0].tolist(), *told[0].tolist(), -1]


@every_family
def test_static_cache(family: str) -> None:
    inputs = tiny.inputs(family, IMAGES[family])
    for positions in ("keep", "renumber"):
        with pruning(family, positions=positions):
            _, dynamic = answers(tiny.model(family), **inputs)
            _, static = answers(tiny.model(family), **inputs, cache_implementation="static", disable_compile=True)
        torch.testing.assert_close(static, dynamic, rtol=1e-4, atol=1e-4)


@every_family
def test_assisted_by_prompt_lookup(family: str) -> None:
    """The prompt repeats itself, so that the first forward already has drafts, and its cache is cropped."""
    inputs = tiny.inputs(family, IMAGES[family][:1])
    inputs["input_ids"][:, -3:] = inputs["input_ids"][:, -8:-5]
    for name in ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"):
        if name in inputs:
            fill = tiny.IDS["<pad>"] if name == "input_ids" else 0
            inputs[name] = torch.nn.functional.pad(inputs[name], (4, 0), value=fill)
    with pruning(family):
        greedy = generate(family, inputs, max_new_tokens=12)
        assert torch.equal(generate(family, inputs, max_new_tokens=12, prompt_lookup_num_tokens=3), greedy)


@pytest.mark.parametrize("family", ["llava", "llava_next", "qwen2_5_vl", "qwen3_vl"])
def test_assisted_by_another_model(family: str) -> None:
    inputs = tiny.inputs(family, IMAGES[family][:1])
    with pruning(family):
        greedy = generate(family, inputs, max_new_tokens=12)
        helper = copy.deepcopy(tiny.model(family, seed=1))
        assert torch.equal(generate(family, inputs, max_new_tokens=12, assistant_model=helper), greedy)


@every_family
def test_text_only_prompts_are_left_alone(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, [[], []])
    tokens, logits = answers(model, **inputs)
    with pruning(family) as pruned:
        pruned_tokens, pruned_logits = answers(model, **inputs)
        assert pruned.last == []
    assert torch.equal(pruned_tokens, tokens)
    assert torch.equal(pruned_logits, logits)


@every_family
@pytest.mark.parametrize("positions", ["keep", "renumber"])
@pytest.mark.parametrize("rows", [1, 2])
def test_second_turn_on_the_same_cache(family: str, positions: str, rows: int) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family][:rows])
    with pruning(family, positions=positions):
        first = model.generate(
            **inputs, max_new_tokens=4, do_sample=False, suppress_tokens=SPECIAL_IDS, return_dict_in_generate=True
        )
        turn = torch.randint(32, 200, (rows, 5), generator=torch.Generator().manual_seed(3))
        ids = torch.cat([first.sequences, turn], dim=1)
        more = ids.shape[1] - inputs["input_ids"].shape[1]
        grown = {
            name: torch.cat([value, torch.full((rows, more), fill)], dim=1)
            for name, fill in {
                "attention_mask": 1,
                "mm_token_type_ids": 0,
                "token_type_ids": int(family == "paligemma"),
            }.items()
            if (value := inputs.get(name)) is not None
        }
        _, at_once = answers(model, **inputs | grown | {"input_ids": ids})
        continued = {"input_ids": ids, "attention_mask": grown["attention_mask"]}
        _, continued_logits = answers(model, **continued, past_key_values=first.past_key_values)
    torch.testing.assert_close(continued_logits, at_once, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "qwen3_vl", "gemma3"])
def test_second_turn_on_a_static_cache(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    logits = []
    for cache in (hf.DynamicCache(config=model.config), hf.StaticCache(config=model.config, max_cache_len=128)):
        alone = tiny.inputs(family, IMAGES[family][:1])
        with pruning(family, positions="renumber"):
            model.generate(**alone, max_new_tokens=1, past_key_values=cache, disable_compile=True)
            ids = torch.cat([alone["input_ids"], torch.tensor([[40, 41, 42]])], dim=1)
            more = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "past_key_values": cache}
            logits.append(answers(model, **more, disable_compile=True)[1])
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)
    cache = hf.StaticCache(config=model.config, max_cache_len=128)
    with pruning(family):
        model.generate(**inputs, max_new_tokens=1, past_key_values=cache, disable_compile=True)
        ids = torch.cat([inputs["input_ids"], torch.tensor([[40, 41, 42]] * 2)], dim=1)
        with pytest.raises(ValueError, match="dynamic cache"):
            model.generate(input_ids=ids, past_key_values=cache, max_new_tokens=1, disable_compile=True)


@pytest.mark.parametrize("family", ["llava", "llava_next", "llava_onevision"])
@pytest.mark.parametrize("positions", ["keep", "renumber"])
@pytest.mark.parametrize("rows", [1, 2])
def test_second_image_on_the_same_cache(family: str, positions: str, rows: int) -> None:
    model, sizes = tiny.model(family), [size[:1] for size in IMAGES[family][:rows]]
    one, two = (tiny.inputs(family, sizes, first=first) for first in (0, 5))
    both = {name: torch.cat([one[name], two[name]], dim=1) for name in ("input_ids", "attention_mask")}
    for name in set(one) - {*both, "batch_num_images"}:
        both[name] = torch.stack([one[name], two[name]], dim=1).flatten(0, 1)
    with pruning(family, positions=positions):
        cache = hf.DynamicCache(config=model.config)
        model(**one, past_key_values=cache)
        assert cache.get_seq_length() == one["input_ids"].shape[1]
        late = model(**two | {"attention_mask": both["attention_mask"]}, past_key_values=cache).logits[:, -1]
        at_once = model(**both).logits[:, -1]
    torch.testing.assert_close(late, at_once, rtol=1e-4, atol=1e-4)


@every_family
@pytest.mark.parametrize("padding", ["left", "right"])
def test_labels_and_backward(family: str, padding: str) -> None:
    """The loss is that of the shortened prompts, and the gradient reaches the vision side through the kept tokens."""
    model, sizes = copy.deepcopy(tiny.model(family)).requires_grad_(True), IMAGES[family]
    inputs = tiny.inputs(family, sizes, padding=padding)
    labels = inputs["input_ids"].masked_fill(inputs["input_ids"] >= min(SPECIAL_IDS), -100)
    with eadp.attach(model, method=EverySecond()) as pruned:
        out = model(**inputs, labels=labels)
        out.loss.backward()
        columns = pruned.columns
    assert out.logits.shape[:2] == inputs["input_ids"].shape
    towers = [weight.grad for name, weight in model.named_parameters() if "vision" in name or "visual" in name]
    assert max(float(gradient.abs().max()) for gradient in towers if gradient is not None) > 0

    total, count = 0.0, 0
    for row in range(2):
        alone = tiny.inputs(family, sizes[row : row + 1], first=row)
        width = alone["input_ids"].shape[1]
        here = columns[row : row + 1, -width:] if padding == "left" else columns[row : row + 1, :width]
        by_hand = shortened(model, alone, here, "keep")
        target = by_hand["input_ids"][0, 1:]
        told = target < min(SPECIAL_IDS)
        logits = model(**by_hand, use_cache=True).logits[0, :-1]
        total += torch.nn.functional.cross_entropy(logits[told], target[told], reduction="sum").item()
        count += int(told.sum())
    assert out.loss.item() == pytest.approx(total / count, rel=1e-4)


@every_family
def test_merged_tokens_are_sums_of_rows(family: str) -> None:
    """Merging by hand: the kept rows of the features, and of DeepStack, are replaced before plain `generate`."""
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family][:1])
    with eadp.attach(model, method=Pairs()) as pruned:
        _, logits = answers(model, **inputs)
        (layout,), columns = pruned.images, pruned.columns
    full, short = (
        shortened(model, inputs, keep, "keep")["mm_encoder_outputs"]["image"]
        for keep in (torch.ones_like(columns), columns)
    )
    kept = columns[inputs["input_ids"] == model.config.image_token_id]
    for name in ("pooler_output", "deepstack_features"):
        if (layers := getattr(full, name, None)) is None:
            continue
        for source, target in zip(flattened(layers), flattened(getattr(short, name)), strict=True):
            target.copy_(paired(source, layout.slots)[kept])
    by_hand = shortened(model, inputs, columns, "keep") | {"mm_encoder_outputs": {"image": short}}
    torch.testing.assert_close(answers(model, **by_hand)[1], logits, rtol=1e-4, atol=1e-4)


def flattened(features: Any) -> list[Tensor]:
    return (
        [features]
        if isinstance(features, Tensor) and features.ndim == 2
        else [x for y in features for x in flattened(y)]
    )


def paired(rows: Tensor, slots: Tensor) -> Tensor:
    """Row at the slot of token i ← mean of tokens i and i + 1, for even i."""
    tokens, rows = rows[slots], rows.clone()
    for index in range(0, len(tokens), 2):
        rows[slots[index]] = tokens[index : index + 2].mean(0)
    return rows
