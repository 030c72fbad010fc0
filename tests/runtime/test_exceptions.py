"""Whatever ends a call, and wherever: nothing of it is left, on the model or in memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.simple_methods import EverySecond
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import eadp
from eadp.methods import FastV, HiPrune, PyramidDrop, VisionZip
from eadp.runtime import call
from eadp.runtime.vision_recorder import _recording

SIZES = [[(28, 28)], [(28, 28), (28, 28)]]
CUT = {"budget": "after_prune", "keep": 3}
METHODS = [VisionZip(keep=4), HiPrune(keep=3), FastV(**CUT), [EverySecond(), PyramidDrop(**CUT)]]
POINTS: dict[str, Callable[[Any], nn.Module]] = {
    "tower": lambda model: model.model.vision_tower.get_submodule("encoder.layers.1.mlp"),
    "tower attention": lambda model: model.model.vision_tower.get_submodule("encoder.layers.1.self_attn.out_proj"),
    "projector": lambda model: model.model.multi_modal_projector,
    "language model": lambda model: model.model.language_model,
    "attention": lambda model: model.model.language_model.layers[1].self_attn.o_proj,
    "last layer": lambda model: model.model.language_model.layers[2],
    "head": lambda model: model.lm_head,
}


def names(method: Any) -> str:
    return "+".join(each.name for each in method) if isinstance(method, list) else method.name


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("method", METHODS, ids=names)
def test_nothing_is_left_of_a_call_that_was_ended(method: Any, error: type[BaseException]) -> None:
    model, inputs, text = tiny.model("llava"), tiny.inputs("llava", SIZES), tiny.inputs("llava", [[], []])
    stock, stock_text, registered = model(**inputs).logits, model(**text).logits, set(ALL_ATTENTION_FUNCTIONS)
    with eadp.attach(model, method=method):
        logits = model(**inputs).logits
        seen: list[weakref.ref[Any]] = []
        for name, find in POINTS.items():

            def fail(module: nn.Module, args: Any, output: Any) -> None:
                seen.append(weakref.ref(output if isinstance(output, torch.Tensor) else output.last_hidden_state))
                raise error

            handle = find(model).register_forward_hook(fail)
            try:
                for run in (model, lambda **arguments: model.generate(**arguments, max_new_tokens=2)):
                    with pytest.raises(error):
                        run(**inputs)
            finally:
                handle.remove()
            assert call._present.get() is None, name
            assert _recording.get() is None, name
            assert torch.equal(model(**text).logits, stock_text), name
            assert torch.equal(model(**inputs).logits, logits), name
        gc.collect()
        assert [each() for each in seen] == [None] * 2 * len(POINTS)
    assert torch.equal(model(**inputs).logits, stock)
    assert set(ALL_ATTENTION_FUNCTIONS) == registered


@pytest.mark.parametrize("method", METHODS, ids=names)
def test_a_prefill_leaves_no_states_of_the_tower(method: Any) -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", SIZES)
    seen: list[weakref.ref[Any]] = []
    handles = [
        layer.register_forward_hook(lambda module, args, output: seen.append(weakref.ref(output)))
        for layer in model.model.vision_tower.encoder.layers
    ]
    try:
        with eadp.attach(model, method=method) as pruned:
            model(**inputs)
            gc.collect()
            assert len(seen) == 3
            assert [each() for each in seen] == [None] * 3
            assert [type(image) for image in pruned.images] == [eadp.models.ImageLayout] * 3
    finally:
        for handle in handles:
            handle.remove()


def test_a_failed_attachment_leaves_nothing() -> None:
    model = tiny.model("llava_next")
    traces = [({*vars(each)}, len(each._forward_pre_hooks)) for each in model.modules()]
    with pytest.raises(ValueError, match="give attach the processor"):
        eadp.attach(model, method=EverySecond(), unpad=False)
    assert [({*vars(each)}, len(each._forward_pre_hooks)) for each in model.modules()] == traces
    with eadp.attach(model, method=EverySecond()):
        pass
