"""Cuts between layers against a slow reference without hooks."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.inside_methods import DEPTH, NAMES, Recording, deep, method, with_depth
from helpers.manual_pruning import SPECIAL_IDS, answers
from helpers.prompts import IMAGES
from torch import Tensor
from transformers.models.llama import modeling_llama as hf_llama

import eadp
from eadp.core import Selection
from eadp.methods.inside import tokens_per_layer
from eadp.models import adapter_of


class Reference:
    """LLaVA's language model, layer by layer on one prompt, with nothing but its own layers.

    looks: by layer, what the last token of the prompt would attend to in it, before its cut: mean over heads.
    """

    def __init__(self, model: Any, inputs: dict[str, Tensor], positions: str) -> None:
        self.model, self.text, self.positions = model, model.model.language_model, positions
        self.prompt = inputs["input_ids"][0]
        image = self.prompt == model.config.image_token_id
        # Which image each column belongs to; 0 for words.
        self.image = (image & ~image.roll(1)).cumsum(0) * image
        self.pixels = inputs["pixel_values"]
        self.looks: dict[int, Tensor] = {}

    def run(self, ids: Tensor, choices: dict[int, Selection]) -> Tensor:
        """L×vocabulary, with zeros for tokens that did not come to the end. ids: L."""
        states = self.text.embed_tokens(ids[None])
        features = self.model.model.get_image_features(self.pixels, return_dict=True).pooler_output
        states[0, : len(self.image)][self.image > 0] = torch.cat(list(features))
        image = torch.cat([self.image, torch.zeros(len(ids) - len(self.image), dtype=torch.long)])
        columns = list(range(len(ids)))
        for index, layer in enumerate(self.text.layers):
            if index in choices:
                self.looks[index] = self._look(layer, states, columns, image)
                states, columns = self._cut(choices[index], states, columns, image)
            states = layer(states, attention_mask=self._square(columns), position_embeddings=self._turned(columns))
        logits = torch.zeros(len(ids), self.model.config.text_config.vocab_size)
        logits[columns] = self.model.lm_head(self.text.norm(states))[0]
        return logits

    def _cut(self, choice: Selection, states: Tensor, columns: list[int], image: Tensor) -> tuple[Tensor, list[int]]:
        """Each image's kept rows in their order, then those that were merged; the words around it as they were."""
        visual = [place for place, column in enumerate(columns) if image[column]]
        rows = (choice.indices if choice.rows is None else choice.rows).tolist()
        new = states[0, visual][rows] if choice.merge is None else choice.merge @ states[0, visual]
        tokens = {number: [] for number in image.unique().tolist()}
        for row, state in zip(rows, new, strict=True):
            column = columns[visual[row]]
            tokens[int(image[column])].append((column, state))
        kept: list[tuple[int, Tensor]] = []
        for place, column in enumerate(columns):
            number = int(image[column])
            if not number:
                kept.append((column, states[0, place]))
            elif tokens[number]:
                kept += tokens.pop(number)
                tokens[number] = []
        return torch.stack([state for _, state in kept])[None], [column for column, _ in kept]

    def _turned(self, columns: list[int]) -> Any:
        places = torch.tensor(columns) if self.positions == "keep" else torch.arange(len(columns))
        return self.text.rotary_emb(torch.zeros(1), places[None])

    def _square(self, columns: list[int]) -> Tensor:
        return torch.ones(len(columns), len(columns), dtype=torch.bool).tril()[None, None]

    def _look(self, layer: Any, states: Tensor, columns: list[int], image: Tensor) -> Tensor:
        seen: list[Tensor] = []
        handle = layer.self_attn.q_proj.register_forward_hook(lambda module, args, output: seen.append(output))
        other = layer.self_attn.k_proj.register_forward_hook(lambda module, args, output: seen.append(output))
        layer(states, attention_mask=self._square(columns), position_embeddings=self._turned(columns))
        handle.remove()
        other.remove()
        width = layer.self_attn.head_dim
        query, key = (each.unflatten(-1, (-1, width)).transpose(1, 2) for each in seen)
        query, key = hf_llama.apply_rotary_pos_emb(query, key, *self._turned(columns))
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        last = columns.index(len(self.prompt) - 1)
        weights = (query[0, :, last, None] @ key[0, :, : last + 1].mT * width**-0.5).softmax(-1)
        return weights[:, 0].mean(0)[[place for place, column in enumerate(columns) if image[column]]]


@pytest.mark.parametrize("positions", ["keep", "renumber"])
@pytest.mark.parametrize("name", NAMES)
def test_same_as_a_reference_without_hooks(name: str, positions: Any) -> None:
    """The prefill and every step of decoding, as if layer by layer by hand with the same choice."""
    model, inputs = deep("llava"), tiny.inputs("llava", [[(28, 28), (28, 28)]])
    recording = Recording(of=with_depth(name))
    with eadp.attach(model, method=recording, budget_over="prompt", positions=positions) as pruned:
        tokens, logits = answers(model, **inputs)
        forward = model(**inputs).logits[0]
    cuts = recording.cuts(32, DEPTH)
    choices = {cut.layer: selection for cut, selection in zip(cuts, recording.log, strict=False)}
    together = zip(*(one.per_layer for one in pruned.last), strict=True)
    assert tuple(map(sum, together)) == tokens_per_layer(cuts, 32, DEPTH)
    assert (name == "sparsevlm") == any(choice.merge is not None for choice in choices.values())
    reference, prompt = Reference(model, inputs, positions), inputs["input_ids"][0]
    for step in range(tokens.shape[1]):
        expected = reference.run(torch.cat([prompt, tokens[0, :step]]), choices)
        torch.testing.assert_close(logits[0, step], expected[-1], rtol=1e-4, atol=1e-4)
    expected = reference.run(prompt, choices)
    stayed = expected.any(-1)
    torch.testing.assert_close(forward[stayed], expected[stayed], rtol=1e-4, atol=1e-4)
    assert torch.equal(pruned.columns[0], stayed)
    for column in (~stayed).nonzero().flatten().tolist():
        assert torch.equal(forward[column], forward[column - 1])
    other = Reference(model, inputs, {"keep": "renumber", "renumber": "keep"}[positions]).run(prompt, choices)
    assert (other[-1] - expected[-1]).abs().max() > 1e-2


def test_folded_tokens_are_those_of_a_reference_without_hooks() -> None:
    """FastV with `fold`: every dropped token is in the mean that half of its nearest kept token becomes."""
    model, inputs = deep("llava"), tiny.inputs("llava", [[(28, 28)]])
    recording = Recording(of=method("fastv", 5, layers=(8,), fold=True))
    with eadp.attach(model, method=recording):
        tokens, logits = answers(model, **inputs)
    (choice,) = recording.log[:1]
    assert choice.merge is not None
    reference, prompt = Reference(model, inputs, "keep"), inputs["input_ids"][0]
    for step in range(tokens.shape[1]):
        expected = reference.run(torch.cat([prompt, tokens[0, :step]]), {2: choice})
        torch.testing.assert_close(logits[0, step], expected[-1], rtol=1e-4, atol=1e-4)
    dropping = reference.run(prompt, {2: replace(choice, merge=None)})
    assert (dropping[-1] - logits[0, 0]).abs().max() > 1e-3


def test_each_cut_of_pyramiddrop_scores_by_the_positions_of_its_stage() -> None:
    model, inputs = deep("llava"), tiny.inputs("llava", [[(28, 28)]])
    recording = Recording(of=with_depth("pyramiddrop"))
    with eadp.attach(model, method=recording):
        model(**inputs)
    choices = {cut.layer: choice for cut, choice in zip(recording.cuts(16, DEPTH), recording.log, strict=True)}
    looks = {}
    for positions in ("keep", "renumber"):
        reference = Reference(model, inputs, positions)
        reference.run(inputs["input_ids"][0], choices)
        looks[positions] = reference.looks
    assert [*choices] == [2, 4, 6]
    for layer, choice in choices.items():
        torch.testing.assert_close(choice.scores, looks["renumber"][layer], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(looks["keep"][2], looks["renumber"][2])
    assert (looks["keep"][6] - looks["renumber"][6]).abs().max() > 1e-4


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
        logits = Reference(model, inputs, recording.positions).run(inputs["input_ids"][0], choices)
    for column in range(1, len(logits)):
        if not logits[column].any():
            logits[column] = logits[column - 1]
    expected = torch.nn.functional.cross_entropy(logits[:-1], labels[0, 1:])
    assert out.loss.item() == pytest.approx(float(expected), rel=1e-4)
    tower = [weight.grad for path, weight in model.named_parameters() if "vision" in path]
    assert max(float(gradient.abs().max()) for gradient in tower if gradient is not None) > 0


# Gemma 3's windows count the tokens that are left, so a mask cut out of the full one is not its mask.
@pytest.mark.parametrize("family", [family for family in tiny.FAMILIES if family != "gemma3"])
@pytest.mark.parametrize("name", ["fastv", "sparsevlm"])
@pytest.mark.parametrize("positions", ["keep", "renumber"])
def test_every_family_by_hand_from_the_cut_on(family: str, name: str, positions: Any) -> None:
    """What the stock model gives to layer 1 is cut by hand: states, position embeddings with their coordinates, the
    mask, and Qwen3-VL's features that are added after layer 1. Its own layers do the rest."""
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family][1:], first=1)
    text: Any = adapter_of(model).text_model
    recording = Recording(of=method(name, 0.7, **({"layers": (3, 4, 5)} if name == "sparsevlm" else {})))
    with eadp.attach(model, method=recording, positions=positions) as pruned:
        logits = model(**inputs).logits[0]
        stays = pruned.columns[0]
    given: dict[str, Any] = {}
    handles = [
        text.register_forward_pre_hook(lambda _, args, kwargs: given.update(kwargs), with_kwargs=True),
        text.layers[1].register_forward_pre_hook(
            lambda _, args, kwargs: given.update(kwargs, states=args[0]), with_kwargs=True
        ),
    ]
    model(**inputs, use_cache=False)
    for handle in handles:
        handle.remove()
    states, mask, there = given["states"][0].clone(), given["attention_mask"], given.get("visual_pos_masks")
    added = torch.zeros_like(states)
    if there is not None:
        added[there[0]] = given["deepstack_visual_embeds"][1]
    places = {column: (column, 0) for column in stays.nonzero().flatten().tolist()}
    images = (inputs["input_ids"][0] == adapter_of(model).geometry.placeholder_id("image")).nonzero().flatten()
    for picture, choice in zip(pruned.images, recording.log, strict=True):
        columns, images = images[: picture.length], images[picture.length :]
        tokens = columns[picture.slots]
        (cut,) = recording.cuts(len(picture), 3)
        if choice.merge is None:
            continue
        for rows in (states, added):
            rows[tokens[choice.rows]] = choice.merge @ rows[tokens]
        end = int(columns[stays[columns]].max())
        for number, row in enumerate(choice.rows[cut.keep - cut.merged :]):
            places[int(tokens[row])] = (end, 1 + number)
    order = sorted(places, key=lambda column: places[column])
    assert (order != sorted(order)) == (name == "sparsevlm")
    states, added = states[None, order], added[None, order]
    if positions == "keep":
        turned = tuple(each[:, order] for each in given["position_embeddings"])
    else:
        count = torch.arange(len(order))
        turned = text.rotary_emb(states, count.expand(3, 1, -1) if "qwen" in family else count[None])
    mask = torch.ones(len(stays), len(stays), dtype=torch.bool).tril()[None, None] if mask is None else mask
    mask = mask[:, :, stays][..., stays]
    for index in (1, 2):
        states = text.layers[index](states, attention_mask=mask, position_embeddings=turned)
        if index == 1:
            states = states + added
    assert not bool(stays.all())
    torch.testing.assert_close(logits[order], model.lm_head(text.norm(states))[0], rtol=1e-4, atol=1e-4)
