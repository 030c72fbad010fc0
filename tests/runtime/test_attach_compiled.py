"""Compiled models: hooks that come or go after compilation take effect, and decode steps stay one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import tiny
from helpers.inside_methods import generated, method
from helpers.prompts import IMAGES
from torch import Tensor, nn

import eadp


@pytest.fixture(autouse=True)
def _forget_compiled_code() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def one_graph() -> hf.CompileConfig:
    """What makes `generate` compile its decode steps, on a CPU too; several graphs would be an error."""
    config = hf.CompileConfig(backend="eager", fullgraph=True, mode=None)
    config._compile_all_devices = True
    return config


def compiled_answer(model: Any, inputs: dict[str, Any], **settings: Any) -> tuple[Tensor, int]:
    """The answer, and the number of graphs that were compiled for it."""
    torch._dynamo.utils.counters.clear()
    settings = {"cache_implementation": "static", "compile_config": one_graph()} | settings
    answer = generated(model, inputs, **settings)
    return answer, torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize(
    ("rows", "name", "positions"),
    [(1, "divprune", "keep"), (2, "divprune", "renumber"), (1, "sparsevlm", "renumber"), (2, "sparsevlm", "keep")],
)
def test_decode_steps_are_one_graph(rows: int, name: str, positions: Any) -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", IMAGES["llava"][:rows])
    chosen = eadp.DivPrune(keep=5) if name == "divprune" else method(name, 5)
    with eadp.attach(model, method=chosen, positions=positions) as pruned:
        expected = generated(model, inputs)
        answer, graphs = compiled_answer(model, inputs)
        assert torch.equal(answer, expected)
        assert graphs == 1
        assert len(pruned.last[0]) == 5


def test_decode_steps_on_a_fitted_cache_are_one_graph() -> None:
    model, inputs = tiny.model("qwen3_vl"), tiny.inputs("qwen3_vl", IMAGES["qwen3_vl"][:1])
    with eadp.attach(model, method=eadp.DivPrune(keep=3)) as pruned:
        expected = generated(model, inputs)
        cache = pruned.static_cache(max_new_tokens=8)
        answer, graphs = compiled_answer(model, inputs, cache_implementation=None, past_key_values=cache)
        assert torch.equal(answer, expected)
        assert graphs == 1


def test_decode_steps_that_were_compiled_before() -> None:
    """They know nothing of a pruned cache until they are compiled again; and afterwards nothing of hooks."""
    model, inputs = tiny.model("llava"), tiny.inputs("llava", IMAGES["llava"])
    stock, _ = compiled_answer(model, inputs)
    with eadp.attach(model, method=eadp.DivPrune(keep=5)):
        expected = generated(model, inputs)
        assert torch.equal(compiled_answer(model, inputs)[0], expected)
    assert torch.equal(compiled_answer(model, inputs)[0], stock)


@cache
def small() -> Any:
    """A LLaVA that is compiled in little time."""
    kind, settings = tiny.CONFIGS["llava"]
    vision = {**settings["vision_config"], "num_hidden_layers": 1}
    text = {**settings["text_config"], "num_hidden_layers": 1}
    return tiny.build(kind(**{**settings, "vision_config": vision, "text_config": text, "vision_feature_layer": -1}))


def wrap(model: nn.Module) -> tuple[Any, Callable[[], None]]:
    return torch.compile(model, backend="eager"), lambda: None


def replace_forward(model: Any) -> tuple[Any, Callable[[], None]]:
    model.forward = torch.compile(model.forward, backend="eager")
    return model, lambda: delattr(model, "forward")


def compile_in_place(model: Any) -> tuple[Any, Callable[[], None]]:
    model.compile(backend="eager")
    return model, lambda: setattr(model, "_compiled_call_impl", None)


@pytest.mark.slow
@pytest.mark.parametrize("compile_model", [wrap, replace_forward, compile_in_place])
def test_a_model_that_was_compiled_and_used_before(
    compile_model: Callable[[Any], tuple[Any, Callable[[], None]]],
) -> None:
    model, inputs = small(), tiny.inputs("llava", IMAGES["llava"])
    stock = model(**inputs).logits
    with eadp.attach(model, method=eadp.DivPrune(keep=3)):
        expected = model(**inputs).logits
    compiled, undo = compile_model(model)
    try:
        torch.testing.assert_close(compiled(**inputs).logits, stock)
        with eadp.attach(model, method=eadp.DivPrune(keep=3)) as pruned:
            torch.testing.assert_close(compiled(**inputs).logits, expected)
            assert [len(each) for each in pruned.last] == [3, 3, 3]
            pruned.set(keep=2)
            compiled(**inputs)
            assert [len(each) for each in pruned.last] == [2, 2, 2]
        torch.testing.assert_close(compiled(**inputs).logits, stock)
    finally:
        undo()


@pytest.mark.slow
def test_a_model_that_is_compiled_after_it_was_attached() -> None:
    model, inputs = small(), tiny.inputs("llava", IMAGES["llava"])
    stock = model(**inputs).logits
    with eadp.attach(model, method=eadp.DivPrune(keep=3)) as pruned:
        expected = model(**inputs).logits
        compiled, undo = compile_in_place(model)
        try:
            torch.testing.assert_close(compiled(**inputs).logits, expected)
            assert [len(each) for each in pruned.last] == [3, 3, 3]
            pruned.detach()
            torch.testing.assert_close(compiled(**inputs).logits, stock)
        finally:
            undo()


def test_the_wrapper_of_a_compiled_model() -> None:
    model = tiny.model("llava")
    wrapper: Any = torch.compile(model, backend="eager")
    with eadp.attach(wrapper, method=eadp.DivPrune(keep=3)) as pruned:
        wrapper.generate(**tiny.inputs("llava", IMAGES["llava"]), max_new_tokens=2)
        assert [len(each) for each in pruned.last] == [3, 3, 3]
