"""Geometries come from a configuration alone, and lay tokens out as the models of transformers do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.llava_next.modeling_llava_next import LlavaNextModel
from transformers.models.llava_next_video.modeling_llava_next_video import LlavaNextVideoPooler
from transformers.models.llava_onevision.modeling_llava_onevision import LlavaOnevisionModel

from eadp.models import FAMILIES
from eadp.models.anyres import NEWLINE
from eadp.models.layout import ImageLayout, Placeholders, Pooling
from eadp.models.llava_next import LlavaNextGeometry, LlavaNextVideoGeometry
from eadp.models.llava_onevision import LlavaOnevisionGeometry
from eadp.models.vision_call import VisionCall

NOWHERE = Placeholders(None, [])
sizes = st.tuples(st.integers(20, 2000), st.integers(20, 2000))


def image_call(size: tuple[int, int]) -> VisionCall:
    return VisionCall("image", {"image_sizes": torch.tensor([size])}, (), [0])


def original_packing(model_class: Any, config: Any, cells: Tensor, size: tuple[int, int], **arguments: Any) -> Tensor:
    """Pack one image by the model's own method, which uses nothing but the configuration."""
    (packed,), _ = model_class.pack_image_features(SimpleNamespace(config=config), [cells], [size], **arguments)
    return packed


@pytest.mark.parametrize("family", FAMILIES)
def test_a_geometry_needs_no_model(family: str) -> None:
    geometry = FAMILIES[family].load().geometry_class(tiny.model(family).config)
    assert geometry.model_type == family
    assert not any(isinstance(each, torch.nn.Module) for each in vars(geometry).values())


@settings(deadline=None, max_examples=60)
@given(sizes)
def test_llava_next_packs_as_its_model_does(size: tuple[int, int]) -> None:
    config = hf.LlavaNextConfig()
    geometry = LlavaNextGeometry(config)
    crops = geometry.crop_grid(list(size))
    count = 1 + crops[0] * crops[1]
    numbers = torch.arange(count * geometry.side**2).view(count, -1, 1)
    expected = original_packing(
        LlavaNextModel,
        config,
        numbers,
        size,
        vision_feature_select_strategy="full",
        image_newline=torch.tensor([NEWLINE]),
    )[:, 0]
    assert torch.equal(geometry.packed_numbers(crops, list(size)), expected)
    (layout,) = geometry.layouts(image_call(size), NOWHERE)
    assert layout.length == len(expected)
    assert torch.equal(geometry.arrange(layout, numbers)[:, 0], expected[layout.slots])


@settings(deadline=None, max_examples=60)
@given(sizes)
def test_llava_onevision_packs_and_scales_as_its_model_does(size: tuple[int, int]) -> None:
    config = hf.LlavaOnevisionConfig()
    geometry = LlavaOnevisionGeometry(config)
    (layout,) = geometry.layouts(image_call(size), NOWHERE)
    cells = torch.rand(layout.crops, geometry.side**2, 2, generator=torch.Generator().manual_seed(0))
    newline = torch.tensor([-1.0, -1.0])
    expected = original_packing(LlavaOnevisionModel, config, cells, size, image_newline=newline)
    assert layout.length == len(expected)
    assert torch.equal((expected == newline).all(1).nonzero().flatten(), layout.newline_slots)
    assert torch.equal(geometry.arrange(layout, cells), expected[layout.slots])


def test_large_images_of_llava_onevision_are_scaled() -> None:
    (layout,) = LlavaOnevisionGeometry(hf.LlavaOnevisionConfig()).layouts(image_call((2000, 2000)), NOWHERE)
    assert layout.resampled
    assert len(layout.grids) == 2


def clip_layout(geometry: Any, frames: int, length: int) -> ImageLayout:
    (layout,) = geometry.layouts(VisionCall("video", {}, (1, frames, 3, 1, 1), [length]), NOWHERE)
    return layout


def test_llava_onevision_pools_frames_as_its_model_does() -> None:
    config = hf.LlavaOnevisionConfig()
    geometry = LlavaOnevisionGeometry(config)
    layout = clip_layout(geometry, 3, 3 * 14 * 14 + 1)
    cells = torch.rand(3, 27 * 27, 2, generator=torch.Generator().manual_seed(0))
    expected = LlavaOnevisionModel.apply_pooling(SimpleNamespace(config=config), cells)
    assert torch.equal(geometry.arrange(layout, cells), expected.flatten(0, 1))
    assert clip_layout(geometry, 3, 3 * 13 * 14).pooling == Pooling("average", 2)
    with pytest.raises(ValueError, match="3 frames came as 100 tokens"):
        clip_layout(geometry, 3, 100)


@pytest.mark.parametrize("mode", ["average", "max"])
def test_llava_next_video_pools_frames_as_its_model_does(mode: str) -> None:
    config = hf.LlavaNextVideoConfig(spatial_pool_mode=mode)
    geometry = LlavaNextVideoGeometry(config)
    cells = torch.rand(3, 24 * 24, 2, generator=torch.Generator().manual_seed(0))
    expected = LlavaNextVideoPooler(config)(cells).flatten(0, 1)
    layout = clip_layout(geometry, 3, len(expected))
    assert torch.equal(geometry.arrange(layout, cells), expected)


def test_a_convolution_needs_the_model() -> None:
    config = hf.LlavaNextVideoConfig(spatial_pool_mode="conv")
    layout = clip_layout(LlavaNextVideoGeometry(config), 3, 3 * 12 * 12)
    with pytest.raises(ValueError, match="pools by a convolution"):
        layout.arrange(torch.rand(3, 24 * 24, 2))
