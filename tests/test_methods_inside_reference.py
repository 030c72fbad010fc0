"""Cuts between layers against a slow reference without hooks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import tiny
import torch
from by_hand import SPECIAL_IDS, answers
from inside_methods import DEPTH, NAMES, Recording, deep, method, with_depth
from prompts import IMAGES
from torch import Tensor

import eadp
from eadp.core import Selection
from eadp.methods.inside import per_layer
from eadp.models import family_of


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


# Gemma 3's windows count the tokens that are left, so a mask cut out of the full one is not its mask.
@pytest.mark.parametrize("family", [family for family in tiny.FAMILIES if family != "gemma3"])
def test_every_family_by_hand_from_the_cut_on(family: str) -> None:
    """What the stock model gives to layer 1 is cut by hand: states, position embeddings with their coordinates, the
    mask, and Qwen3-VL's features that are added after layer 1. Its own layers do the rest."""
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family][1:], first=1)
    text: Any = family_of(model).text_model
    with eadp.attach(model, method=method("fastv")) as pruned:
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
    states, mask = given["states"][:, stays], given["attention_mask"]
    turned = tuple(each[:, stays] for each in given["position_embeddings"])
    mask = torch.ones(len(stays), len(stays), dtype=torch.bool).tril()[None, None] if mask is None else mask
    mask = mask[:, :, stays][..., stays]
    for index in (1, 2):
        states = text.layers[index](states, attention_mask=mask, position_embeddings=turned)
        there = given.get("visual_pos_masks")
        if there is not None and index < len(given["deepstack_visual_embeds"]):
            states[0, there[0, stays]] += given["deepstack_visual_embeds"][index][stays[there[0]]]
    assert not bool(stays.all())
    torch.testing.assert_close(logits[stays], model.lm_head(text.norm(states))[0], rtol=1e-4, atol=1e-4)
