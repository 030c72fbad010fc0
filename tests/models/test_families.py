"""Where each family's visual tokens are: grids, layouts, slots, newlines; tiny and at full size."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import tiny
from helpers.manual_pruning import answers
from helpers.prompts import CLIPS, IMAGES
from helpers.simple_methods import EverySecond
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

import eadp
from eadp.architectures.configs import ARCHITECTURES, GRIDS
from eadp.models import FAMILIES, ImageLayout, adapter_of
from eadp.models.anyres import packed_layout
from eadp.models.layout import Placeholders
from eadp.runtime.vision_recorder import VISION_CALL


def layouts(family: str, sizes: list[list[tuple[int, ...]]]) -> list[ImageLayout]:
    model = tiny.model(family)
    with eadp.attach(model, method=EverySecond()) as pruned:
        model(**tiny.inputs(family, sizes))
        return pruned.images


@pytest.mark.parametrize("family", ["llava", "llava_next", "llava_next_video", "llava_onevision"])
def test_states_are_arranged_as_the_features_are(family: str) -> None:
    """With the projector as the guide, the aligned states are exactly the features that the language model receives."""
    model, base = tiny.model(family), tiny.model(family).base_model
    geometry = FAMILIES[family].load().geometry_class(model.config)
    for sizes, modality in ((IMAGES[family], "image"), (CLIPS.get(family), "video")):
        if sizes is None:
            continue
        inputs = tiny.inputs(family, sizes)
        pixels = inputs["pixel_values" if modality == "image" else "pixel_values_videos"]
        arguments = {name: inputs[name] for name in ("image_sizes", "batch_num_images") if name in inputs}
        output = getattr(base, f"get_{modality}_features")(pixels, **arguments, return_dict=True)
        layer = output.hidden_states[model.config.vision_feature_layer]
        states = layer if family == "llava_onevision" else layer[:, 1:]
        rows = [each.flatten(0, -2) for each in output.pooler_output]
        for one in layouts(family, sizes):
            crops, states = states[: one.crops], states[one.crops :]
            if (family, modality) == ("llava_next_video", "video"):
                aligned = base.multi_modal_projector(geometry.arrange(one, crops))
            else:
                aligned = geometry.arrange(one, base.multi_modal_projector(crops))
            torch.testing.assert_close(aligned, rows.pop(0)[one.slots], rtol=1e-4, atol=1e-4)
        assert not rows
        assert len(states) == 0


def test_crops_of_an_unpadded_image() -> None:
    """30×50 pixels on 2×2 crops of 4×4 cells: 4 of the 8 rows of cells show the image."""
    (one,) = layouts("llava_next", [[(30, 50)]])
    assert list(one.grids) == [(4, 4), *[(2, 4)] * 4]
    assert one.layout == [(0.0, 0.0, 0.5, 0.5), (0.0, 0.5, 0.5, 1.0), (0.5, 0.0, 1.0, 0.5), (0.5, 0.5, 1.0, 1.0)]
    assert one.length == 16 + 4 * (8 + 1)
    assert one.newlines[:16].tolist() == [-1] * 16
    assert one.newlines[16:32].tolist() == [*[24] * 4, *[33] * 4] * 2
    assert one.newlines[32:].tolist() == [*[42] * 4, *[51] * 4] * 2
    assert one.slots[16:24].tolist() == [16, 17, 18, 19, 25, 26, 27, 28]
    assert one.slots[24:32].tolist() == [20, 21, 22, 23, 29, 30, 31, 32]


def test_a_crop_that_is_cut_away_is_no_block() -> None:
    """Three crops of 2×2 cells in a row, of which only the two middle columns are left."""
    left = [8 + 0, 8 + 1, -1, 8 + 2, 8 + 3, -1]
    one = packed_layout(torch.tensor([0, 1, 2, 3, *left]), 2, (1, 3))
    assert list(one.grids) == [(2, 2), (2, 2)]
    assert one.layout == [(0.0, 0.0, 1.0, 1.0)]
    assert one.newlines.tolist() == [-1, -1, -1, -1, 6, 6, 9, 9]


def test_an_image_without_crops_has_one_newline_at_its_end() -> None:
    one = packed_layout(torch.tensor([0, 1, 2, 3, -1]), 2, (0, 0))
    assert (list(one.grids), one.layout, one.length) == ([(2, 2)], None, 5)
    assert one.newlines.tolist() == [4] * 4


def test_crops_that_were_scaled_down_are_one_block() -> None:
    """16 crops of 7×7 cells are more than 9 by more than a tenth, so OneVision scales the 28×28 cells to 21×21."""
    (one,) = layouts("llava_onevision", [[(100, 100)]])
    assert list(one.grids) == [(7, 7), (21, 21)]
    assert one.length == 49 + 21 * 22
    assert one.newlines[49:52].tolist() == [70, 70, 70]


def test_the_whole_image_is_the_first_block_of_tiles() -> None:
    (one,) = layouts("internvl", [[(24, 48)]])
    assert list(one.grids) == [(3, 3)] * 3
    assert one.slots.tolist() == [*range(18, 27), *range(18)]
    (one,) = layouts("idefics3", [[(48, 72)]])
    assert list(one.grids) == [(3, 3)] * 7
    assert one.layout == (2, 3)
    assert one.slots[:9].tolist() == list(range(54, 63))


def test_tall_and_wide_tiles_and_several_images() -> None:
    assert [one.layout for one in layouts("idefics3", [[(72, 24), (24, 24), (24, 72)]])] == [(3, 1), None, (1, 3)]


def test_frames_are_blocks() -> None:
    assert [list(one.grids) for one in layouts("qwen2_5_vl", CLIPS["qwen2_5_vl"])] == [[(2, 3)] * 2, [(2, 2)] * 3]
    assert [list(one.grids) for one in layouts("qwen3_vl", CLIPS["qwen3_vl"])] == [[(2, 3)] * 2, [(2, 2)] * 3, [(2, 3)]]
    assert [list(one.grids) for one in layouts("llava_onevision", CLIPS["llava_onevision"][:1])] == [[(4, 4)] * 3]
    assert [list(one.grids) for one in layouts("llava_next_video", CLIPS["llava_next_video"][:1])] == [[(2, 2)] * 3]


def test_pixtral_in_llavas_classes() -> None:
    """Images have different sizes. The marks after their rows are text, so they stay."""
    vision = dict(tiny.TOWER, model_type="pixtral", image_size=64, patch_size=4)
    config = hf.LlavaConfig(
        vision_config=vision,
        text_config=tiny.LLAMA,
        image_token_index=tiny.IDS["<image>"],
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    torch.manual_seed(0)
    model, image = hf.LlavaForConditionalGeneration(config).eval(), tiny.IDS["<image>"]
    ids = torch.tensor([[40, *[*[image] * 5, 50] * 3, 41, *[*[image] * 4, 50] * 2, 42]])
    inputs = {
        "input_ids": ids,
        "pixel_values": torch.randn(2, 3, 12, 20),
        "image_sizes": torch.tensor([[12, 20], [8, 16]]),
    }
    with eadp.attach(model, method=EverySecond()) as pruned:
        cached, uncached = (answers(model, **inputs, use_cache=use_cache)[1] for use_cache in (True, False))
    torch.testing.assert_close(cached, uncached, rtol=1e-4, atol=1e-4)
    assert [list(one.grids) for one in pruned.images] == [[(3, 5)], [(2, 4)]]
    assert int(pruned.columns[:, : ids.shape[1]].sum()) == 8 + 4 + int((ids != image).sum())


def test_unknown_families_are_named() -> None:
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**tiny.TEXT))
    with pytest.raises(ValueError, match=r"'llama'.*gemma3.*llava.*qwen3_vl"):
        adapter_of(model)
    assert set(FAMILIES) == set(tiny.FAMILIES)


def llava(pixels: Any, **arguments: Any) -> dict[str, Any]:
    return dict(pixel_values=torch.empty(pixels, device="meta"), **arguments)


def qwen(grid: list[int], depth: int) -> dict[str, Any]:
    patches = torch.empty(grid[0] * grid[1] * grid[2], depth, device="meta")
    return {"pixel_values": patches, "image_grid_thw": torch.tensor([grid])}


FULL_SIZE: dict[str, tuple[dict[str, Any], list[tuple[int, int]]]] = {
    "llava-1.5-7b": (llava((1, 3, 336, 336)), [(24, 24)]),
    "llava-next-7b": (llava((1, 5, 3, 336, 336), image_sizes=torch.tensor([[672, 672]])), [(24, 24)] * 5),
    "llava-onevision-7b": (llava((1, 5, 3, 384, 384), image_sizes=torch.tensor([[768, 768]])), [(27, 27)] * 5),
    "qwen2.5-vl-3b": (qwen([1, 72, 72], 3 * 2 * 14 * 14), [(36, 36)]),
    "qwen2.5-vl-7b": (qwen([1, 72, 72], 3 * 2 * 14 * 14), [(36, 36)]),
    "qwen3-vl-8b": (qwen([1, 64, 64], 3 * 2 * 16 * 16), [(32, 32)]),
}


def tower_without_values(patches: torch.Tensor, grid_thw: torch.Tensor, **kwargs: Any) -> Any:
    merged = torch.empty(len(patches) // 4, kwargs["width"], device="meta")
    return BaseModelOutputWithDeepstackFeatures(pooler_output=merged, deepstack_features=[merged] * 3)


@pytest.mark.parametrize("name", FULL_SIZE)
def test_full_size(name: str) -> None:
    """Real configurations without weights: 576, 2,880, 3,645, 1,296 and 1,024 tokens."""
    config, (inputs, grids) = ARCHITECTURES[name](), FULL_SIZE[name]
    with torch.device("meta"):
        model = hf.AutoModelForImageTextToText.from_config(config)
    adapter = adapter_of(model)
    assert grids == GRIDS[config.model_type]
    assert adapter.text_model is model.model.language_model
    if "image_grid_thw" in inputs:
        # This tower computes with the values of the grid, which a meta tensor does not have.
        model.model.visual.forward = partial(tower_without_values, width=config.text_config.hidden_size)
    with eadp.attach(model, method=EverySecond()):
        output = model.model.get_image_features(**inputs, return_dict=True)
    call = getattr(output, VISION_CALL)
    (length,) = call.lengths
    (one,) = adapter.geometry.layouts(call, Placeholders(None, [torch.arange(length)]))
    assert list(one.grids) == grids
    assert len(one) == sum(rows * columns for rows, columns in grids)
    assert one.length == length
    assert output.pooler_output[0].shape == (length, config.text_config.hidden_size)
    if (states := adapter.tower_states(call, output)) is not None:
        assert len(states) == one.crops
        aligned = adapter.arrange(one, torch.arange(states.shape[0] * states.shape[1]).view(*states.shape[:2], 1))
        assert len(aligned) == len(one)
