"""Prompts made by the families' own processors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.manual_pruning import answers
from helpers.prompts import IMAGES
from helpers.simple_methods import EverySecond, Ragged
from PIL import Image
from torch import Tensor

import eadp

LLAVA = IMAGES["llava"]


def image(height: int, width: int) -> Image.Image:
    generator = torch.Generator().manual_seed(height)
    return Image.fromarray((torch.rand(height, width, 3, generator=generator) * 255).byte().numpy())


@pytest.mark.parametrize(
    "family", [family for family in tiny.FAMILIES if family not in ("llava_next_video", "smolvlm", "paligemma")]
)
def test_processors_prompts_of_different_images(family: str) -> None:
    """Two conversations with one image per message: a padded batch gives the same as each alone."""
    model, processor = tiny.model(family), tiny.processor(family)
    images = [image(40, 60), image(70, 30)]
    content = [{"type": "image"}, {"type": "text", "text": "where is it?"}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)

    def answer(*images: Image.Image) -> Tensor:
        nested = [[image] for image in images]
        inputs = processor(images=nested, text=[text] * len(images), padding=True, return_tensors="pt")
        return answers(model, **inputs, max_new_tokens=3)[1]

    with eadp.attach(model, method=Ragged()) as pruned:
        together = answer(*images)
        assert len(pruned.last) == 2
        torch.testing.assert_close(torch.cat([answer(image) for image in images]), together, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ["llava_next", "llava_onevision", "qwen3_vl", "internvl", "idefics3", "gemma3"])
def test_two_images_in_a_message(family: str) -> None:
    model, processor = tiny.model(family), tiny.processor(family)
    content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "which?"}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    inputs = processor(images=[[image(40, 60), image(70, 30)]], text=[text], return_tensors="pt")
    with eadp.attach(model, method=Ragged()) as pruned:
        cached, uncached = (answers(model, **inputs, use_cache=use_cache)[1] for use_cache in (True, False))
    torch.testing.assert_close(cached, uncached, rtol=1e-4, atol=1e-4)
    one, two = pruned.images
    assert len(one) + len(two) == sum(selection.total for selection in pruned.last)
    if family == "llava_onevision":
        assert [list(one.grids), list(two.grids)] == [[(7, 7)]] * 2


@pytest.mark.parametrize("image", ["no such file", Image.new("RGB", (0, 0))], ids=["missing", "empty"])
def test_a_processors_error_comes_through_and_the_model_can_be_detached(image: Any) -> None:
    model, processor = tiny.model("llava_next"), tiny.processor("llava_next")
    call = {"text": "<image> what?", "images": image}
    with pytest.raises(Exception, match=r".+") as plain:
        processor(**call, return_tensors="pt")
    with eadp.attach(model, method=EverySecond()), pytest.raises(plain.type) as pruned:
        processor(**call, return_tensors="pt")
    assert str(pruned.value) == str(plain.value)
    assert not [key for key in vars(model.model) if "eadp" in key]
