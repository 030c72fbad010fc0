"""Every part of the mechanism is needed: without it the answer changes or fails. And none waits for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.manual_pruning import answers
from helpers.prompts import IMAGES, every_family
from helpers.simple_methods import EverySecond, Ragged
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import eadp
from eadp.runtime import before, cache_map, compact, masks
from eadp.runtime.positions import renumber_positions

LLAVA = IMAGES["llava"]


def broken(model: nn.Module, inputs: dict[str, Tensor], **settings: Any) -> bool:
    """Whether answers with a cache differ from those without one."""
    with eadp.attach(model, method=Ragged(), **settings):
        _, right = answers(model, **inputs, use_cache=False)
        try:
            _, cached = answers(model, **inputs)
        except (RuntimeError, ValueError, IndexError):
            return True
    return not torch.allclose(cached, right, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
def test_control_without_mask_translation(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    assert not broken(model, inputs)
    monkeypatch.setattr(masks, "continuation_mask", lambda mask, *_: mask)
    assert broken(model, inputs)


@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
def test_control_without_the_shift_of_renumbered_positions(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    assert not broken(model, inputs, positions="renumber")

    def without_shift(*args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        return renumber_positions(*args, **kwargs)[0], None

    monkeypatch.setattr(before, "renumber_positions", without_shift)
    assert broken(model, inputs, positions="renumber")


def test_control_with_physical_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """`generate` slices the conversation by the length that the cache reports."""
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA[:1])
    ids = torch.cat([inputs["input_ids"], torch.tensor([[40, 41, 42]])], dim=1)

    def last_logits() -> Tensor:
        with eadp.attach(model, method=EverySecond()):
            cache = model(**inputs, use_cache=True).past_key_values
            return answers(model, input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=cache)[1]

    right = last_logits()
    monkeypatch.setattr(cache_map.PrunedCache, "get_seq_length", cache_map.PrunedCache.get_query_offset)
    assert not torch.allclose(last_logits(), right, rtol=1e-3, atol=1e-3)


def test_control_with_gaps_in_the_counted_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks of transformers read a gap as the border of a packed sequence."""
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA[:1])
    inputs.pop("attention_mask")
    with eadp.attach(model, method=EverySecond()):
        right = model(**inputs, use_cache=False).logits
        monkeypatch.setattr(before, "count_columns", lambda plan, start, device: plan.index)
        wrong = model(**inputs, use_cache=False).logits
    assert not torch.allclose(wrong[:, -1], right[:, -1], rtol=1e-2, atol=1e-2)


def test_control_without_forward_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", LLAVA)
    labels = inputs["input_ids"].masked_fill(inputs["input_ids"] >= 256, -100)
    monkeypatch.setattr(compact.Compaction, "restore", lambda plan, states: states)
    with eadp.attach(model, method=EverySecond()), pytest.raises(ValueError, match="batch_size"):
        model(**inputs, labels=labels)


class Waits(TorchDispatchMode):
    """Counts the operations for which a host waits for its device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return function(*args, **kwargs or {})


@every_family
@pytest.mark.parametrize("rows", [1, 2])
def test_a_decode_step_waits_no_more_than_the_unpruned_model_does(family: str, rows: int) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family][:rows])
    mask = None if rows == 1 else torch.nn.functional.pad(inputs["attention_mask"], (0, 1), value=1)
    step = {"input_ids": torch.full((rows, 1), 50), "attention_mask": mask}
    if family.startswith("qwen"):
        step["position_ids"] = torch.full((3, rows, 1), 70)

    def waits() -> int:
        cache = model(**inputs, use_cache=True).past_key_values
        with Waits() as waited:
            model(**step, past_key_values=cache)
        return waited.count

    unpruned = waits()
    for positions in ("keep", "renumber"):
        with eadp.attach(model, method=EverySecond(), positions=positions):
            assert waits() <= unpruned
