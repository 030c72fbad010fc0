"""A tower that remembers its layers: the same outputs, computed once, and never stale."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from helpers import tiny

from eadp import attach, load_pocket
from eadp.evaluate.tower_cache import remember_images
from eadp.models.efficientnet_lite import EfficientNetLiteConfig, EfficientNetLiteModel
from eadp.models.prompt import build_inputs
from eadp.pocket.samples import samples


@pytest.fixture(scope="module")
def model_and_processor():
    return load_pocket()


@pytest.fixture
def counted(model_and_processor):
    """A model whose tower remembers, its processor, and how often its third layer was computed."""
    model, processor = deepcopy(model_and_processor[0]), model_and_processor[1]
    layer, calls = model.model.vision_tower.encoder.layers[2], []
    compute = layer.forward
    layer.forward = lambda *args, **kwargs: (calls.append(1), compute(*args, **kwargs))[1]
    remember_images(model.model.vision_tower)
    return model, processor, calls


def inputs_of(processor, number):
    sample = list(samples("validation", 4))[number]
    return build_inputs(processor, [sample.image], [sample.question])


@torch.inference_mode()
def test_the_same_image_is_encoded_once(counted, model_and_processor):
    model, processor, calls = counted
    for number in (0, 0, 3, 0):
        inputs = inputs_of(processor, number)
        assert torch.equal(model(**inputs).logits, model_and_processor[0](**inputs).logits)
    assert len(calls) == 3


@pytest.mark.parametrize("method", ["eadp", "visionzip", "fastv"])
@torch.inference_mode()
def test_methods_choose_as_without_it(counted, model_and_processor, method):
    model, processor, _ = counted
    inputs = inputs_of(processor, 0)
    keep = 0.5 if method == "fastv" else 24
    logits = []
    for each in (model, model, model_and_processor[0]):
        with attach(each, processor, method=method, keep=keep):
            logits.append(each(**inputs).logits)
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


@torch.inference_mode()
def test_efficientnet_remembers_an_image_and_what_was_asked_of_it():
    torch.manual_seed(0)
    tower = EfficientNetLiteModel(EfficientNetLiteConfig(**tiny.EFFICIENTNET)).eval()
    compute, calls = tower.forward, []
    tower.forward = lambda *args, **kwargs: (calls.append(1), compute(*args, **kwargs))[1]
    remember_images(tower)
    images = torch.rand(2, 1, 3, 16, 16)
    for number, wants_states in ((0, True), (0, True), (0, False), (1, False), (1, False)):
        found = tower(images[number].clone(), output_hidden_states=wants_states)
        expected = compute(images[number], output_hidden_states=wants_states)
        assert torch.equal(found.last_hidden_state, expected.last_hidden_state)
        assert (found.hidden_states is None) != wants_states
    assert len(calls) == 3
