"""The probe reads the attention that eager would return, under every implementation, and changes nothing."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.prompts import IMAGES, every_family
from torch import nn
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from eadp.models import adapter_of
from eadp.runtime.probe import AttentionInputs, record_attention_inputs


@cache
def model_with(family: str, attention: str) -> Any:
    model = copy.deepcopy(tiny.model(family))
    model.set_attn_implementation(attention)
    return model


def attention_modules(family: str, attention: str) -> list[nn.Module]:
    """The attention modules of the second layer of the language model and of the vision tower."""
    model = model_with(family, attention)
    text = adapter_of(model).text_model
    towers = [
        module
        for name, module in model.named_modules()
        if type(module).__name__.endswith("Attention") and "1" in name.split(".") and module not in set(text.modules())
    ]
    return [text.get_submodule("layers.1.self_attn"), towers[0]]


@every_family
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_outputs_stay_the_same_and_nothing_is_left_behind(family: str, attention: str) -> None:
    model, inputs = model_with(family, attention), tiny.inputs(family, IMAGES[family])
    logits, names = model(**inputs).logits, set(ALL_ATTENTION_FUNCTIONS)
    for module in attention_modules(family, attention):
        before = dict(vars(module)), module.config
        with record_attention_inputs(module) as calls:
            assert torch.equal(model(**inputs).logits, logits)
        assert calls
        assert (dict(vars(module)), module.config) == before
        assert module.config._attn_implementation == attention
    assert set(ALL_ATTENTION_FUNCTIONS) == names


@every_family
def test_rows_are_those_of_the_attention_matrix(family: str) -> None:
    """Eager attention returns its matrix: the rows from queries and keys under sdpa are the same."""
    inputs = tiny.inputs(family, IMAGES[family])
    for plain, lazy in zip(attention_modules(family, "eager"), attention_modules(family, "sdpa"), strict=True):
        matrices: list[torch.Tensor] = []
        handle = recording(plain, matrices)
        model_with(family, "eager")(**inputs)
        handle()
        with record_attention_inputs(lazy) as calls:
            model_with(family, "sdpa")(**inputs)
        assert len(matrices) == len(calls)
        for matrix, call in zip(matrices, calls, strict=True):
            last = call.query.shape[2] - 1
            rows = call.rows(torch.tensor([last, last - 2]))
            torch.testing.assert_close(rows, matrix[:, :, [last, last - 2]], rtol=1e-4, atol=1e-4)
            if not call.causal:
                torch.testing.assert_close(call.received(), matrix.mean((1, 2)), rtol=1e-4, atol=1e-5)


def recording(module: nn.Module, matrices: list[torch.Tensor]) -> Any:
    """Record the matrix of eager attention. Qwen's towers drop it, so the function itself is wrapped."""
    scope = type(module).forward.__globals__
    original = scope["eager_attention_forward"]

    def attend(owner: nn.Module, *args: Any, **kwargs: Any) -> Any:
        output, weights = original(owner, *args, **kwargs)
        if owner is module:
            matrices.append(weights)
        return output, weights

    scope["eager_attention_forward"] = attend
    return lambda: scope.update(eager_attention_forward=original)


def test_each_row_of_a_batch_may_ask_for_its_own_query() -> None:
    query, key = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8)
    inputs = AttentionInputs(query, key, 0.5, causal=True)
    queries = torch.tensor([[0], [3]])
    rows = inputs.rows(queries)
    assert rows.shape == (2, 4, 1, 7)
    for row, place in enumerate(queries[:, 0].tolist()):
        # Two keys come from a cache, so query i is at column i + 2. Heads 0 and 1 share the first keys.
        for head in range(4):
            logits = 0.5 * query[row, head, place] @ key[row, head // 2].T
            expected = logits[: place + 3].softmax(0)
            torch.testing.assert_close(rows[row, head, 0, : place + 3], expected)
            assert not rows[row, head, 0, place + 3 :].any()


def test_concatenated_heads_are_one_head() -> None:
    """One softmax of q·k/√8 over the full width of two heads of 4."""
    query, key = torch.randn(3, 2, 5, 4), torch.randn(3, 2, 5, 4)
    rows = AttentionInputs(query, key, 0.5).as_one_head().rows(torch.tensor([0]))
    wide_query, wide_key = (torch.cat([each[:, 0], each[:, 1]], dim=-1) for each in (query, key))
    expected = torch.softmax(wide_query[:, 0, None] @ wide_key.mT / 8**0.5, dim=-1)
    torch.testing.assert_close(rows[:, 0], expected)


def test_a_packed_call_is_reported_sequence_by_sequence() -> None:
    query, key = torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 4)
    first, second = AttentionInputs(query, key, 1.0).split(torch.tensor([0, 2, 6]))
    assert torch.equal(first.query, query[:, :, :2])
    assert torch.equal(second.key, key[:, :, 2:])


def test_flash_attention_finds_its_own_name_again() -> None:
    """A stand-in for flash attention: it reads its name from the module's configuration, and needs a 2-D mask."""
    seen: list[str] = []

    def flash(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **settings: Any) -> Any:
        seen.append(module.config._attn_implementation)
        return query.transpose(1, 2).contiguous(), None

    AttentionInterface.register("flash_for_tests", flash)
    try:
        model = copy.deepcopy(tiny.model("llava"))
        text = adapter_of(model).text_model
        text.config._attn_implementation_internal = "flash_for_tests"
        module = text.get_submodule("layers.1.self_attn")
        with record_attention_inputs(module) as calls:
            model(**tiny.inputs("llava", IMAGES["llava"]))
    finally:
        AttentionInterface._global_mapping.pop("flash_for_tests")
    assert seen == ["flash_for_tests"] * 3
    assert calls[0].causal
