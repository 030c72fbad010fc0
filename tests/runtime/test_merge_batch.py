"""Rows of all images that are merged at once on a pretend GPU: the model answers as on the CPU, image by image."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.pretend_device import module_on_device, on_device, pretend_device, read
from helpers.prompts import Sizes

import eadp
from eadp.runtime import before
from eadp.runtime.merge_batch import MergeBatch

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

CASES: dict[str, tuple[str, list[Sizes], dict[str, Any], bool]] = {
    "images of different sizes": ("qwen3_vl", [[(16, 24), (24, 40)], [(32, 32)]], {"keep": 3}, True),
    "one image keeps all": ("qwen3_vl", [[(16, 24), (24, 40)], [(32, 32)]], {"keep": 6}, True),
    "mosaics of different shapes": ("llava_next", [[(56, 56)], [(30, 50)]], {"keep": 20}, True),
    "a mosaic beside an image that keeps all": ("llava_next", [[(56, 56)], [(30, 50)]], {"keep": 60}, False),
    "one budget for a prompt": ("llava", [[(28, 28)] * 2], {"keep": 12, "budget_over": "prompt"}, True),
    "after the projector": ("gemma3", [[(32, 32)] * 2, [(32, 32)]], {"keep": 3}, True),
    "rows that keep their positions": ("llava", [[(28, 28)]], {"keep": 5, "positions": "keep"}, False),
}
"""The family, the images of each prompt, the arguments of `attach`, and whether all merges are applied at once."""


@pytest.mark.parametrize("case", CASES)
def test_the_model_answers_as_on_the_cpu(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, sizes, asked, at_once = CASES[case]
    inputs, found = tiny.inputs(family, sizes), list[MergeBatch | None]()

    class Recorded(MergeBatch):
        @classmethod
        def of(cls, *arguments: Any) -> MergeBatch | None:
            found.append(MergeBatch.of(*arguments))
            return found[-1]

    monkeypatch.setattr(before, "MergeBatch", Recorded)
    logits = []
    for on_cpu in (True, False):
        model = tiny.model(family) if on_cpu else module_on_device(tiny.model(family))
        with eadp.attach(model, tiny.tokenizer(), method="visionzip", **asked), pretend_device():
            logits.append(read(model(**(inputs if on_cpu else on_device(inputs))).logits)[:, -1])
    torch.testing.assert_close(logits[1], logits[0], atol=2e-3, rtol=1e-3)
    assert [each is not None for each in found] == [False, at_once]
