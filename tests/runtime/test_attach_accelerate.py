"""Models that accelerate spreads over devices, with its hooks and ours on the same modules."""

import copy

import pytest
import torch
from accelerate import cpu_offload, dispatch_model
from helpers import tiny
from helpers.manual_pruning import answers
from helpers.prompts import IMAGES
from helpers.simple_methods import Ragged

import eadp

SPREAD = {
    "device_map": lambda model: dispatch_model(model, {"model": "cpu", "lm_head": "cpu"}, force_hooks=True),
    "offload": lambda model: cpu_offload(model, torch.device("cpu")),
}


@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
@pytest.mark.parametrize("spread", SPREAD)
def test_a_spread_model_prunes_as_one_in_one_place(family, spread):
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    with eadp.attach(model, method=Ragged()):
        tokens, logits = answers(model, **inputs)
    spread_out = SPREAD[spread](copy.deepcopy(model))
    with eadp.attach(spread_out, method=Ragged()):
        again, again_logits = answers(spread_out, **inputs)
    assert torch.equal(again, tokens)
    torch.testing.assert_close(again_logits, logits)
