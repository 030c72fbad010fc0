"""Images and prompts from which no relevance can be computed are covered evenly; they do not end generate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.prompts import CLIPS
from PIL import Image

import eadp
from eadp.models.guides import EmbeddingGuide
from eadp.models.prompt import build_inputs

EVENLY = "the text does not tell the tokens apart: they are covered evenly"
ALIKE = "all tokens are alike: those on an even grid stay"
GREY = Image.new("RGB", (60, 40), (128, 128, 128))


def selected(family: str, inputs: dict[str, Any], **settings: Any) -> list[eadp.Selection]:
    model = tiny.model(family)
    processor = tiny.processor("llava_next" if family == "llava_next_video" else family)
    guide = EmbeddingGuide(model.get_input_embeddings(), processor)
    with eadp.attach(model, processor, guide=guide, **settings) as pruned:
        model.generate(**inputs, max_new_tokens=2, do_sample=False)
        return pruned.last


@pytest.mark.parametrize("preset", [None, "paper", "published"])
@pytest.mark.parametrize("family", ["llava", "llava_next", "qwen2_5_vl"])
def test_an_image_without_a_question(family: str, preset: str | None) -> None:
    (kept,) = selected(family, build_inputs(tiny.processor(family), [GREY], [""]), keep=4, preset=preset)
    assert kept.notes[:2] == ("the question is empty", EVENLY)
    assert 4 <= len(kept) < kept.total


@pytest.mark.parametrize("family", CLIPS)
def test_a_clip_without_a_question(family: str) -> None:
    (kept,) = selected(family, tiny.inputs(family, CLIPS[family][:1]), keep=4, question="")
    assert kept.notes == ("the question is empty", EVENLY)
    assert len(kept) == 4


@pytest.mark.parametrize("preset", [None, "paper", "published"])
def test_a_uniform_image(preset: str | None) -> None:
    """The tower of Qwen gives every patch of it the same features."""
    inputs = build_inputs(tiny.processor("qwen2_5_vl"), [GREY], ["What is it?"])
    (kept,) = selected("qwen2_5_vl", inputs, keep=4, preset=preset)
    (even,) = selected("qwen2_5_vl", inputs, keep=4, method="uniform")
    assert kept.notes == (EVENLY, ALIKE)
    assert kept.indices.tolist() == even.indices.tolist()


def test_a_black_clip() -> None:
    inputs = tiny.inputs("qwen2_5_vl", CLIPS["qwen2_5_vl"][:1])
    black = {**inputs, "pixel_values_videos": torch.zeros_like(inputs["pixel_values_videos"])}
    (kept,) = selected("qwen2_5_vl", black, keep=4, question="What happens?")
    (even,) = selected("qwen2_5_vl", black, keep=4, method="uniform")
    assert kept.notes == (EVENLY, ALIKE)
    assert kept.indices.tolist() == even.indices.tolist()
