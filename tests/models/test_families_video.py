"""LLaVA-Video's frames on OneVision's classes."""

from __future__ import annotations

import pytest
import torch
from helpers import tiny
from helpers.manual_pruning import answers, shortened
from helpers.simple_methods import EverySecond
from torch.nn import functional as F

import eadp
from eadp.models.llava_video import convert

CLIP = [[(3, 28, 28)]]


def test_frames_are_pooled_by_average_with_a_newline_after_each_row() -> None:
    model = tiny.model("llava_onevision")
    base, pixels = model.base_model, tiny.inputs("llava_onevision", CLIP)["pixel_values_videos"]
    original = base.get_video_features(pixels, return_dict=True)
    projected = base.multi_modal_projector(original.hidden_states[-1]).unflatten(1, (7, 7))
    with convert(model):
        features = base.get_video_features(pixels, return_dict=True).pooler_output[0].view(3, 3, 4, -1)
    averages = F.avg_pool2d(projected.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)
    torch.testing.assert_close(features[:, :, :3], averages, rtol=1e-4, atol=1e-4)
    assert torch.equal(features[:, :, 3], base.image_newline.expand(3, 3, -1))
    assert torch.equal(base.get_video_features(pixels, return_dict=True).pooler_output, original.pooler_output)
    assert not {"apply_pooling", "get_video_features"} & set(vars(base))


def test_rows_that_lost_all_tokens_lose_their_newline() -> None:
    model = tiny.model("llava_onevision")
    with convert(model):
        inputs = tiny.inputs("llava_onevision", CLIP)
        assert int((inputs["input_ids"] == model.config.video_token_id).sum()) == 3 * 3 * 4
        for which, newlines in (("none", 0), ("kept rows", 7), ("all", 9)):
            with eadp.attach(model, method=EverySecond(step=4), newlines=which) as pruned:
                _, logits = answers(model, **inputs)
            kept = pruned.columns[inputs["input_ids"] == model.config.video_token_id].view(9, 4)
            assert kept[:, :3].flatten().nonzero().flatten().tolist() == list(range(0, 27, 4))
            assert int(kept[:, 3].sum()) == pruned.last[0].newlines == newlines
            assert pruned.last[0].tokens_sent == len(pruned.last[0]) + newlines
            by_hand = shortened(model, inputs, pruned.columns, "keep")
            torch.testing.assert_close(answers(model, **by_hand)[1], logits, rtol=1e-4, atol=1e-4)


def test_aligned_states_are_pooled_as_the_features_are() -> None:
    """With the projector as the guide, they are exactly the features that the language model receives."""
    model = tiny.model("llava_onevision")
    base = model.base_model
    with convert(model):
        inputs = tiny.inputs("llava_onevision", CLIP)
        output = base.get_video_features(inputs["pixel_values_videos"], return_dict=True)
        with eadp.attach(model, method=EverySecond()) as pruned:
            model(**inputs)
            (layout,) = pruned.images
        aligned = layout.arrange(base.multi_modal_projector(output.hidden_states[-1]))
        torch.testing.assert_close(aligned, output.pooler_output[0][layout.slots], rtol=1e-4, atol=1e-4)


def test_other_models_cannot_be_converted() -> None:
    with pytest.raises(ValueError, match="LLaVA-OneVision"):
        convert(tiny.model("llava"))
