"""Cuts between layers against a slow reference without hooks, and in every way of generating."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import tiny
import torch
import transformers as hf
from by_hand import SPECIAL_IDS, answers
from inside_methods import NAMES, Recording, method
from prompts import IMAGES, every_family
from simple_methods import EverySecond, Guide, Pairs, Ragged
from torch import Tensor
from transformers.masking_utils import flash_attention_mask

import eadp
from eadp.core import Selection
from eadp.methods.fastv import FastV
from eadp.methods.inside import Cut, InsideMethod, per_layer
from eadp.methods.pyramiddrop import PyramidDrop
from eadp.methods.sparsevlm import SparseVLM

DEPTH = 8


@cache
def deep(family: str, attention: str = "sdpa") -> Any:
    """The family's tiny model with eight layers, so that methods with three cuts have room."""
    kind, settings = tiny.CONFIGS[family]
    settings = settings | {"text_config": settings["text_config"] | {"num_hidden_layers": DEPTH}}
    torch.manual_seed(0)
    model = hf.AutoModelForImageTextToText.from_config(kind(**settings), attn_implementation=attention).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape) * (1.5 * weight.shape[-1] ** -0.5))
    model.generation_config.eos_token_id = None
    return model.requires_grad_(False)


class Reference:
    """LLaVA's language model, layer by layer on one prompt, with nothing but its own layers."""

    def __init__(self, model: Any, inputs: dict[str, Tensor]) -> None:
        self.model, self.text = model, model.model.language_model
        self.image = (inputs["input_ids"][0] == model.config.image_token_id).nonzero().flatten()
        self.pixels = inputs["pixel_values"]

    def run(self, ids: Tensor, choices: dict[int, Selection]) -> Tensor:
        """L×vocabulary, with zeros for tokens that did not come to the end. ids: L."""
        states = self.text.embed_tokens(ids[None])
        features = self.model.model.get_image_features(self.pixels, return_dict=True).pooler_output
        states[0, self.image] = torch.cat(list(features))
        cos, sin = self.text.rotary_emb(states, torch.arange(len(ids))[None])
        columns = torch.arange(len(ids))
        for index, layer in enumerate(self.text.layers):
            if index in choices:
                visual = (torch.isin(columns, self.image)).nonzero().flatten()
                choice = choices[index]
                if choice.merge is not None:
                    rows = choice.merge @ states[0, visual]
                    states = states.clone()
                    states[0, visual[choice.indices]] = rows
                gone = visual[~choice.mask]
                stays = ~torch.isin(torch.arange(len(columns)), gone)
                states, columns = states[:, stays], columns[stays]
            turned = cos[:, columns], sin[:, columns]
            square = torch.ones(len(columns), len(columns), dtype=torch.bool).tril()[None, None]
            states = layer(states, attention_mask=square, position_embeddings=turned)
        logits = torch.zeros(len(ids), self.model.config.text_config.vocab_size)
        logits[columns] = self.model.lm_head(self.text.norm(states))[0]
        return logits


def with_depth(name: str, keep: int = 5) -> InsideMethod:
    """Cuts before layers 2, 4 and 6 of 8, or before layer 2."""
    layers = {"pyramiddrop": (8, 16, 24), "sparsevlm": (8, 16, 24)}.get(name, (8,))
    return method(name, keep, layers=layers, **({"recycle": 1.0} if name == "sparsevlm" else {}))


@pytest.mark.parametrize("name", NAMES)
def test_same_as_a_reference_without_hooks(name: str) -> None:
    """The prefill and every step of decoding, as if layer by layer by hand with the same choice."""
    model, inputs = deep("llava"), tiny.inputs("llava", [[(28, 28), (28, 28)]])
    recording = Recording(of=with_depth(name))
    with eadp.attach(model, method=recording, budget_over="prompt") as pruned:
        tokens, logits = answers(model, **inputs)
        forward = model(**inputs).logits[0]
    cuts = recording.cuts(32, DEPTH)
    choices = {cut.layer: selection for cut, selection in zip(cuts, recording.log, strict=False)}
    together = zip(*(one.per_layer for one in pruned.last), strict=True)
    assert tuple(map(sum, together)) == per_layer(cuts, 32, DEPTH)
    assert (name == "sparsevlm") == any(choice.merge is not None for choice in choices.values())
    reference, prompt = Reference(model, inputs), inputs["input_ids"][0]
    for step in range(tokens.shape[1]):
        expected = reference.run(torch.cat([prompt, tokens[0, :step]]), choices)
        torch.testing.assert_close(logits[0, step], expected[-1], rtol=1e-4, atol=1e-4)
    expected = reference.run(prompt, choices)
    stayed = expected.any(-1)
    torch.testing.assert_close(forward[stayed], expected[stayed], rtol=1e-4, atol=1e-4)
    assert torch.equal(pruned.columns[0], stayed)
    for column in (~stayed).nonzero().flatten().tolist():
        assert torch.equal(forward[column], forward[column - 1])


@pytest.mark.parametrize("name", ["fastv", "pyramiddrop"])
def test_scores_are_the_attention_of_the_last_token(name: str) -> None:
    """What eager attention reports: of layer 1 for FastV's cut before layer 2, of layer 2 itself for PyramidDrop's."""
    model, inputs = deep("llava"), tiny.inputs("llava", [[(28, 28)]])
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    attentions = eager(**inputs, output_attentions=True).attentions
    layer = {"fastv": 1, "pyramiddrop": 2}[name]
    image = (inputs["input_ids"][0] == model.config.image_token_id).nonzero().flatten()
    expected = attentions[layer][0, :, -1].mean(0)[image]
    with eadp.attach(model, method=with_depth(name)) as pruned:
        model(**inputs)
    torch.testing.assert_close(pruned.last[0].scores, expected, rtol=1e-4, atol=1e-6)
    first = torch.zeros(16, dtype=torch.bool)
    first[expected.topk(pruned.last[0].layers[0][1]).indices] = True
    assert bool(first[pruned.last[0].indices].all())


@pytest.mark.parametrize("name", NAMES)
def test_labels_and_backward(name: str) -> None:
    """The loss is that of the reference, where a word behind a dropped token is told by the last that stayed."""
    model, inputs = copy.deepcopy(deep("llava")).requires_grad_(True), tiny.inputs("llava", [[(28, 28)]])
    labels = inputs["input_ids"].masked_fill(inputs["input_ids"] >= min(SPECIAL_IDS), -100)
    recording = Recording(of=with_depth(name))
    with eadp.attach(model, method=recording):
        out = model(**inputs, labels=labels)
        out.loss.backward()
    choices = {cut.layer: choice for cut, choice in zip(recording.cuts(16, DEPTH), recording.log, strict=True)}
    with torch.no_grad():
        logits = Reference(model, inputs).run(inputs["input_ids"][0], choices)
    for column in range(1, len(logits)):
        if not logits[column].any():
            logits[column] = logits[column - 1]
    expected = torch.nn.functional.cross_entropy(logits[:-1], labels[0, 1:])
    assert out.loss.item() == pytest.approx(float(expected), rel=1e-4)
    tower = [weight.grad for path, weight in model.named_parameters() if "vision" in path]
    assert max(float(gradient.abs().max()) for gradient in tower if gradient is not None) > 0


def generated(model: Any, inputs: dict[str, Any], **settings: Any) -> Tensor:
    defaults = {"max_new_tokens": 8, "do_sample": False, "suppress_tokens": SPECIAL_IDS}
    return model.generate(**inputs, **defaults | settings)[:, inputs["input_ids"].shape[1] :]


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
        with pytest.raises(ValueError, match="some were pruned"):
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
    for kept in (False, True):
        with eadp.attach(model, method=FastV(keep=1), keep_newlines=kept) as pruned:
            model(**inputs)
        (picture,), (chosen,) = pruned.pictures, pruned.last
        dropped = int((~pruned.columns).sum())
        rows = {*picture.newlines.tolist()} - {-1}
        assert dropped == picture.length - 1 - (len(rows) if kept else int(picture.newlines[chosen.indices[0]] >= 0))


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


def test_what_cannot_be_done_is_told() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", IMAGES["llava"][:1])
    for chain in ([FastV(keep=2), EverySecond()], [EverySecond()], [EverySecond(), EverySecond()]):
        with pytest.raises(ValueError, match="one that prunes before the language model and one that prunes inside"):
            eadp.attach(model, method=chain)
    with pytest.raises(TypeError, match="give keep to the methods of the list"):
        eadp.attach(model, method=[EverySecond(), PyramidDrop()], keep=3)
    with pytest.raises(TypeError, match="fastv has no setting shares"):
        eadp.attach(model, method=FastV(keep=2), shares=(1,))
    with (
        eadp.attach(model, method="sparsevlm", keep=2),
        pytest.raises(ValueError, match=r"lowest it can reach is 6\.0"),
    ):
        model(**inputs)
    with eadp.attach(model, method="fastv", keep=2):
        cache = model(**inputs).past_key_values
    following = {"input_ids": torch.tensor([[40]]), "attention_mask": torch.ones(1, inputs["input_ids"].shape[1] + 1)}
    with pytest.raises(RuntimeError, match="attach again"):
        model(**following, past_key_values=cache)
    with eadp.attach(model, method=EverySecond()), pytest.raises(ValueError, match="inside it to go on"):
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


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_masks_of_other_attention_implementations(attention: str) -> None:
    """Ragged rows under both: the choice, the prefill and decoding agree."""
    inputs = tiny.inputs("llava", IMAGES["llava"])
    model = copy.deepcopy(deep("llava"))
    model.set_attn_implementation(attention)
    with eadp.attach(model, method=with_depth("sparsevlm")) as pruned:
        _, logits = answers(model, **inputs)
        kept = [one.indices.tolist() for one in pruned.last]
    with eadp.attach(deep("llava"), method=with_depth("sparsevlm")) as pruned:
        _, expected = answers(deep("llava"), **inputs)
        assert kept == [one.indices.tolist() for one in pruned.last]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_recycled_tokens_take_their_deepstack_rows_along() -> None:
    """Qwen3-VL adds features after layers 0 and 1; the cut comes before layer 1, so those of layer 1 are merged too."""
    model, inputs = tiny.model("qwen3_vl"), tiny.inputs("qwen3_vl", [[(32, 48)]])
    recording = Recording(of=SparseVLM(keep=4, budget="after_prune", recycle=1.0))
    added: list[tuple[int, int]] = []
    text = model.model.language_model
    stock = type(text)._deepstack_process

    def watched(self: Any, states: Tensor, there: Tensor, rows: Tensor) -> Tensor:
        added.append((int(there.sum()), len(rows)))
        return stock(self, states, there, rows)

    type(text)._deepstack_process = watched
    try:
        with eadp.attach(model, method=recording):
            model(**inputs)
    finally:
        type(text)._deepstack_process = stock
    total = recording.log[0].total
    assert recording.log[0].merge is not None
    assert added == [(total, total), (4, 4)]


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
        assert len(pruned.last[0]) == 5
    with eadp.attach(model, method=recording.frozen()):
        _, uncached = answers(model, **cut, use_cache=False)
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
