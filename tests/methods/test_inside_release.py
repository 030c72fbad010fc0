"""What the releases do in a model of 32 layers: where they cut, by which attention, where rows and positions go."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.inside_methods import NAMES, Recording, deep, method
from helpers.manual_pruning import answers
from helpers.prompts import IMAGES
from helpers.simple_methods import EverySecond
from torch import Tensor, nn

import eadp
from eadp.methods import get_method
from eadp.methods.dart import DART
from eadp.methods.inside import InsideMethod
from eadp.methods.sparsevlm import SparseVLM, rater_fit, select_raters
from eadp.parity.sequence import GivenLayerView
from eadp.runtime.decoder import Decoder

LAYERS = 32
RELEASES: dict[str, tuple[InsideMethod, list[int], str]] = {
    "fastv": (get_method("fastv", keep=5), [2], "keep"),
    "dart": (get_method("dart", keep=5), [2], "keep"),
    "sparsevlm": (SparseVLM(table=(9, 6, 2)), [3, 7, 16], "renumber"),
    "pyramiddrop": (get_method("pyramiddrop"), [8, 16, 24], "renumber"),
}


@dataclass
class Layer:
    """What one call of a layer got, and what it gave."""

    states: Tensor
    turned: tuple[Tensor, Tensor]
    output: Tensor


@dataclass
class Watched:
    """The layers of a language model, call by call, after everything that cuts them."""

    text: Any
    calls: list[list[Layer]] = field(default_factory=list)

    def __enter__(self) -> Watched:
        def seen(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor, index: int) -> None:
            if index == 0:
                self.calls.append([])
            self.calls[-1].append(Layer(args[0], kwargs["position_embeddings"], output))

        self._handles = [
            layer.register_forward_hook(lambda *given, index=index: seen(*given, index=index), with_kwargs=True)
            for index, layer in enumerate(self.text.layers)
        ]
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()


def image_of(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    return (inputs["input_ids"][0] == model.config.image_token_id).nonzero().flatten()


@pytest.mark.parametrize("name", NAMES)
def test_cut_layers_and_the_positions_of_every_stage(name: str) -> None:
    """The layers with fewer tokens, and the positions by which each turns: in the prefill and when decoding."""
    chosen, layers, positions = RELEASES[name]
    model, inputs = deep("llava", depth=LAYERS), tiny.inputs("llava", [[(28, 28)]])
    text, length, recording = model.model.language_model, inputs["input_ids"].shape[1], Recording(of=chosen)
    with eadp.attach(model, method=recording) as pruned, Watched(text) as watched:
        answers(model, **inputs, max_new_tokens=3)
    (one,) = pruned.last
    assert [layer for layer, _ in one.layers] == layers
    prefill, *steps = watched.calls
    assert [layer.states.shape[1] for layer in prefill] == [length - 16 + left for left in one.per_layer]
    columns, choices = torch.arange(length), iter(recording.log)
    for index, layer in enumerate(prefill):
        if index in layers:
            image, choice = torch.isin(columns, image_of(model, inputs)).nonzero().flatten(), next(choices)
            kept = columns[image[choice.indices if choice.rows is None else choice.rows]]
            columns = torch.cat([columns[: image[0]], kept, columns[image[-1] + 1 :]])
        places = columns if positions == "keep" else torch.arange(len(columns))
        assert_turned(text, layer, places)
        for number, step in enumerate(steps):
            assert_turned(text, step[index], (length if positions == "keep" else len(columns)) + torch.tensor([number]))
    assert len(steps) == 2


def assert_turned(text: Any, layer: Layer, places: Tensor) -> None:
    """The layer turned its tokens by these positions."""
    for got, expected in zip(layer.turned, text.rotary_emb(layer.states, places[None]), strict=True):
        torch.testing.assert_close(got, expected)


def test_sparsevlm_puts_recycled_rows_between_the_kept_ones_and_the_words() -> None:
    model, inputs = deep("llava", depth=LAYERS), tiny.inputs("llava", [[(28, 28)]])
    recording = Recording(of=RELEASES["sparsevlm"][0])
    with eadp.attach(model, method=recording), Watched(model.model.language_model) as watched:
        model(**inputs)
    (layers,) = watched.calls
    start, end = int(image_of(model, inputs)[0]), int(image_of(model, inputs)[-1]) + 1
    for index, cut, choice in zip((3, 7, 16), recording.cuts(16, LAYERS), recording.log, strict=True):
        before, after = layers[index - 1].output[0], layers[index].states[0]
        visual = before[start:end]
        kept = choice.rows[: cut.keep - cut.merged]
        assert cut.merged > 0
        assert torch.equal(kept, kept.sort().values)
        assert torch.equal(after[:start], before[:start])
        assert torch.equal(after[start : start + len(kept)], visual[kept])
        torch.testing.assert_close(after[start + len(kept) : start + cut.keep], (choice.merge @ visual)[len(kept) :])
        assert torch.equal(after[start + cut.keep :], before[end:])
        end = start + cut.keep


def test_sparsevlm_scores_by_the_attention_of_the_layers_before_its_cuts() -> None:
    """Layer 2's own, as eager attention reports it, by the raters among the words behind the image."""
    model, inputs = copy.deepcopy(deep("llava", depth=LAYERS)), tiny.inputs("llava", [[(28, 28)]])
    model.set_attn_implementation("eager")
    image, recording = image_of(model, inputs), Recording(of=RELEASES["sparsevlm"][0])
    with Watched(model.model.language_model) as watched:
        attention = model(**inputs, output_attentions=True).attentions[2][0].mean(0)
    with eadp.attach(model, method=recording):
        model(**inputs)
    entered = watched.calls[0][0].states[0]
    words = torch.arange(int(image[-1]) + 1, len(entered))
    rating = words[select_raters(rater_fit(entered[image], entered[words]))]
    torch.testing.assert_close(recording.log[0].scores, attention[rating][:, image].mean(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_dart_sees_norms_keys_and_places(padding: str) -> None:
    """The same choice as from what the stock model gives: hidden states before layer 2, layer 1's cached keys, the
    final norm, and where tokens stand without padding, on which the turn of the pivots depends."""
    model, inputs = deep("llava", depth=LAYERS), tiny.inputs("llava", [[(28, 28)], [(28, 28)]], padding=padding)
    recording = Recording(of=RELEASES["dart"][0])
    with eadp.attach(model, method=recording):
        model(**inputs)
    plain = model(**inputs, output_hidden_states=True, use_cache=True)
    norm, chosen = model.model.language_model.norm, DART(keep=5)
    for row, choice in enumerate(recording.log):
        valid = inputs["attention_mask"][row].nonzero().flatten()
        image = (inputs["input_ids"][row, valid] == model.config.image_token_id).nonzero().flatten()
        words = torch.arange(int(image[-1]) + 1, len(valid))
        states = plain.hidden_states[2][row, valid]
        keys = plain.past_key_values.layers[1].keys[row, :, valid].transpose(0, 1).flatten(1)
        view = GivenLayerView(
            visual=states[image],
            text=states[words],
            visual_keys=keys[image],
            text_keys=keys[words],
            visual_places=image,
            text_places=words,
            norm=norm.weight,
            eps=norm.variance_epsilon,
        )
        (cut,) = chosen.cuts(16, LAYERS)
        assert choice.order.tolist() == chosen.choose(cut, view).order.tolist()
    assert len(recording.log) == 2


def test_the_final_norm_is_found_by_its_name_or_missed_in_a_sentence() -> None:
    class Text(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.config = None
            self.add_module(name, nn.LayerNorm(2, elementwise_affine=False))

    states = torch.tensor([[1.0, 3.0]])
    for name in ("norm", "final_layernorm"):
        torch.testing.assert_close(
            Decoder(Text(name)).apply_final_norm(states), torch.tensor([[-1.0, 1.0]]), rtol=1e-4, atol=0
        )
    with pytest.raises(ValueError, match="after the final norm of Text, which has none named norm"):
        Decoder(Text("last")).apply_final_norm(states)


def test_a_model_may_ask_for_kept_positions_and_attach_has_the_last_word() -> None:
    model, inputs = copy.deepcopy(tiny.model("llava")), tiny.inputs("llava", IMAGES["llava"])

    def logits(**settings: Any) -> Tensor:
        with eadp.attach(model, method=method("pyramiddrop"), **settings):
            return model(**inputs).logits[:, -1]

    release, kept = logits(), logits(positions="keep")
    assert torch.equal(logits(positions="renumber"), release)
    assert (release - kept).abs().max() > 1e-2
    model.config.eadp_positions = "keep"
    assert torch.equal(logits(), kept)
    assert torch.equal(logits(positions="renumber"), release)


@pytest.mark.parametrize("chosen", [EverySecond(), method("pyramiddrop")], ids=["before", "inside"])
def test_no_gap_is_left_where_a_prompt_ends_with_its_image(chosen: Any) -> None:
    """What follows the image has the positions that it would have if the dropped tokens had never been there."""
    model, inputs = tiny.model("llava"), tiny.inputs("llava", IMAGES["llava"][:1])
    end = int(image_of(model, inputs)[-1]) + 1
    cut = inputs | {key: inputs[key][:, :end] for key in ("input_ids", "attention_mask")}
    with (
        eadp.attach(model, method=chosen, positions="renumber") as pruned,
        Watched(model.model.language_model) as watched,
    ):
        answers(model, **cut, max_new_tokens=2)
    assert not bool(pruned.columns[0, -1])
    prefill, step = (call[-1] for call in watched.calls)
    assert_turned(model.model.language_model, step, torch.tensor([prefill.states.shape[1]]))


def test_rows_that_are_not_cut_keep_their_coordinates_beside_one_that_is() -> None:
    """An image of four tokens stays whole, with rows and columns for positions, whatever stands beside it."""
    model, inputs = tiny.model("qwen2_5_vl"), tiny.inputs("qwen2_5_vl", [[(16, 16)], [(24, 32)]])
    plain = model(**tiny.inputs("qwen2_5_vl", [[(16, 16)]])).logits[0, -1]
    with eadp.attach(model, method="fastv", keep=4, positions="renumber") as pruned:
        logits = model(**inputs).logits[0, -1]
        assert [one.tokens_after < one.total for one in pruned.last] == [False, True]
    torch.testing.assert_close(logits, plain, rtol=1e-4, atol=1e-4)
