"""MMTok, SCOPE and VisPruner on a few tokens whose right answer is worked out by hand from what their papers say."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import tiny
from helpers.encoded import encoded_images
from helpers.prompts import CLIPS, IMAGES
from helpers.small_tensors import unit_vectors
from torch import Tensor

import eadp
from eadp.core import TextGuide, TowerAttention, VisualTokens
from eadp.core.greedy_coverage import greedy_coverage
from eadp.methods import SCOPE, MMTok, VisPruner
from eadp.models.guides import EmbeddingGuide
from eadp.models.pixels import padded_patches
from eadp.models.vision_call import VisionCall


def seen(features: Tensor, attention: list[float], *grids: tuple[int, int], **more: Any) -> VisualTokens:
    layer = TowerAttention(22, 24, torch.zeros(len(features), 2, 1), torch.tensor(attention))
    return VisualTokens(features, None, grids, attention=[layer], tower_features=features, **more)


# ── Greedy coverage ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_greedy_coverage() -> None:
    """Rows 0, 1, 2. Candidate 0 reaches 3 + 1 + 0 = 4, candidate 1 2 + 2 + 0, candidate 2 0 + 0 + 3: 0 and 1 tie, and
    the lower index goes first. After it, candidate 1 adds 1 and candidate 2 adds 3."""
    values = torch.tensor([[3.0, 1, 0], [2, 2, 0], [0, 0, 3]])
    picks = greedy_coverage(values, 3)
    assert picks.indices.tolist() == [0, 2, 1]
    assert picks.gains.tolist() == [4, 3, 1]
    # A saliency of 2 lets candidate 1 win; a bonus of 5 puts candidate 2 first.
    assert greedy_coverage(values, 1, saliency=torch.tensor([1.0, 2, 1])).indices.tolist() == [1]
    assert greedy_coverage(values, 1, bonus=torch.tensor([0.0, 0, 5])).indices.tolist() == [2]


def test_excluded_candidates_are_picked_only_when_no_other_is_left() -> None:
    values = torch.tensor([[3.0, 1], [2, 2], [0, 0]])
    assert greedy_coverage(values, 3, excluded=torch.tensor([True, False, False])).indices.tolist() == [1, 2, 0]


def test_what_rises_no_more_than_rounding_gains_nothing() -> None:
    """Candidate 2 is above what candidate 1 reached by rounding alone: the lower index follows, with a gain of 0."""
    picks = greedy_coverage(torch.tensor([[0.5], [1.0], [1.0 + 2.0**-22]]), 3)
    assert picks.indices.tolist() == [1, 0, 2]
    assert picks.gains[1:].tolist() == [0, 0]


def test_greedy_coverage_tells_what_it_cannot_take() -> None:
    with pytest.raises(ValueError, match="values must be candidates×rows"):
        greedy_coverage(torch.zeros(3), 1)
    with pytest.raises(ValueError, match="saliency must have one value of at least 0"):
        greedy_coverage(torch.ones(2, 2), 1, saliency=torch.tensor([1.0, -1.0]))
    with pytest.raises(ValueError, match="bonus must be finite"):
        greedy_coverage(torch.ones(2, 2), 1, bonus=torch.tensor([1.0, math.nan]))


# ── SCOPE ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


ANGLES = unit_vectors(0, 60, 90)
"""Cosines: 0–60° 0.5, 60–90° 0.866, 0–90° 0."""


def test_scope() -> None:
    """Coverage from 0: token 0 reaches 1 + 0.5 + 0 = 1.5, token 1 0.5 + 1 + 0.866 = 2.366, token 2 0 + 0.866 + 1.

    With equal attention, token 1 goes first. It leaves 0.5 of token 0 and 0.134 of token 2: token 0 adds 0.5."""
    found = SCOPE(keep=2).select(seen(ANGLES, [0.5, 0.5, 0.5], (1, 3)))
    assert found.order.tolist() == [1, 0]
    # The attention is summed over the two heads: 2 · 0.5 = 1.
    torch.testing.assert_close(found.gains, torch.tensor([2.3660254, 0.5], dtype=torch.float64))
    # Five times the attention turns 0.134 into 0.67.
    assert SCOPE(keep=2).select(seen(ANGLES, [0.5, 0.5, 2.5], (1, 3))).order.tolist() == [2, 0]
    assert SCOPE(keep=2, alpha=0.0).select(seen(ANGLES, [0.5, 0.5, 2.5], (1, 3))).order.tolist() == [1, 0]


def test_scope_adds_attention() -> None:
    """2 · 0.8 + 1.5 = 3.1 of token 0 against 2.366 and 1.866; then 0.5 + 0.866 of token 1 against 1 of token 2."""
    found = SCOPE(keep=2, combine="add").select(seen(ANGLES, [0.8, 0.0, 0.0], (1, 3)))
    assert found.order.tolist() == [0, 1]
    torch.testing.assert_close(found.gains, torch.tensor([3.1, 1.3660254], dtype=torch.float64))


def test_scope_rounds_the_budget_of_a_crop_down() -> None:
    tokens = seen(unit_vectors(*range(0, 80, 10)), [0.1] * 8, (2, 2), (2, 2))
    assert SCOPE(keep=5).select(tokens).quotas == (2, 2)
    assert SCOPE(keep=5, exact=True).select(tokens).quotas == (3, 2)


# ── VisPruner ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_vispruner() -> None:
    """Tokens 5 and 4 are important. By falling attention the rest is 0, 1, 2, 3 at 0°, 10°, 90° and 45°.

    A = 0, 2 and B = 1, 3: token 0 has its nearest at 10°, token 2 at 45°. Two have to go: both of A. With one to go
    (keep 5), only token 0: left are A = 2, then B = 1, 3."""
    features = unit_vectors(0, 10, 90, 45, 200, 300)
    attention = [0.4, 0.3, 0.2, 0.1, 0.5, 0.6]
    found = VisPruner(keep=4).select(seen(features, attention, (2, 3)))
    assert found.order.tolist() == [5, 4, 1, 3]
    assert found.indices.tolist() == [1, 3, 4, 5]
    found = VisPruner(keep=5).select(seen(features, attention, (2, 3)))
    assert found.order.tolist() == [5, 4, 2, 1, 3]
    assert VisPruner(keep=3, ratio=1.0).select(seen(features, attention, (2, 3))).order.tolist() == [5, 4, 0]


def test_vispruner_without_cls_ranks_by_attention_received() -> None:
    layer = TowerAttention(1, 2, torch.zeros(4, 1, 1), received=torch.tensor([0.1, 0.4, 0.2, 0.3]))
    features = unit_vectors(0, 90, 180, 270)
    tokens = VisualTokens(features, None, [(2, 2)], attention=[layer], tower_features=features)
    for method in (VisPruner(keep=1, ratio=1.0), SCOPE(keep=1)):
        found = method.select(tokens)
        assert found.indices.tolist() == [1]
        assert found.method == f"{method.name} (attention received)"


@pytest.mark.parametrize("name", ["mmtok", "scope", "vispruner"])
def test_methods_say_what_they_lack(name: str) -> None:
    tokens, words = seen(ANGLES, [0.1, 0.2, 0.3], (1, 3)), TextGuide(ANGLES, None)
    tokens = replace(tokens, aligned=ANGLES)
    with pytest.raises(ValueError, match=f"{name} compares tokens in the vision tower"):
        eadp.get_method(name, keep=2).select(replace(tokens, tower_features=None), words)


# ── MMTok ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def asked(words: Tensor, **more: Any) -> tuple[VisualTokens, TextGuide]:
    return VisualTokens(ANGLES, ANGLES, [(1, 3)], tower_features=ANGLES, **more), TextGuide(words, None)


def test_mmtok_covers_words_and_image() -> None:
    """α = 0 leaves the words. Two words at 0° and 90° with τ = 0.02: P is 1/2 for tokens 0 and 2, nearly 0 for token 1.

    With the image alone, as of a question without words, Q has its largest column at token 1, which resembles both."""
    found = MMTok(keep=2, alpha=0.0).select(*asked(unit_vectors(0, 90)))
    assert found.indices.tolist() == [0, 2]
    assert found.gains.sum().item() == pytest.approx(1, abs=0.01)
    found = MMTok(keep=1).select(*asked(torch.empty(0, 2)))
    assert found.indices.tolist() == [1]
    # Token 1 has 0.5, 1 and cos 30° over τ_v = 0.2: the mean of its softmaxes, halved by α.
    columns = torch.softmax(ANGLES.double() @ ANGLES.double().T / 0.2, dim=1)
    assert found.gains.item() == pytest.approx(0.5 * columns[:, 1].mean().item(), rel=1e-6)
    assert any("no words" in note for note in found.notes)


def test_mmtok_never_picks_padding() -> None:
    padding = torch.tensor([False, True, False])
    assert MMTok(keep=2).select(*asked(unit_vectors(60), padding=padding)).indices.tolist() == [0, 2]
    assert MMTok(keep=1).select(*asked(unit_vectors(60))).indices.tolist() == [1]
    assert len(MMTok(keep=3).select(*asked(unit_vectors(60), padding=padding))) == 3


def test_mmtok_depends_on_the_family() -> None:
    llava, qwen = MMTok(keep=0.2).for_family("llava"), MMTok(keep=0.2).for_family("qwen3_vl")
    assert (llava.words, llava.text_temperature) == ("keywords", 0.02)
    assert (qwen.words, qwen.text_temperature) == ("question", 0.01)
    assert MMTok(keep=1, text_temperature=0.5, words="keywords").for_family("qwen2_5_vl").text_temperature == 0.5
    assert (llava.positions_for("llava"), qwen.positions_for("qwen3_vl")) == ("renumber", "keep")
    assert llava.text_to_encode("Is there a dog?") == "there dog"
    assert qwen.text_to_encode("Is there a dog?") == "Question: Is there a dog?"


def test_mmtok_rounds_a_share_down() -> None:
    assert MMTok(keep=0.2).count_to_keep(99) == 19
    assert MMTok(keep=0.2, exact=True).count_to_keep(99) == 20
    assert MMTok(keep=0.001).count_to_keep(99) == 1


def test_mmtok_reads_the_language_model_s_own_embeddings() -> None:
    """On a LLaVA, whose other methods are guided by CLIP, the words come from the embedding table, without a text
    encoder."""
    model, tokenizer = tiny.model("llava"), tiny.tokenizer()
    inputs = tiny.inputs("llava", [[(28, 28)]])
    with (
        encoded_images() as images,
        eadp.attach(model, tokenizer, method="mmtok", keep=4, question="Is there a dog?") as pruned,
    ):
        assert isinstance(pruned.guide, EmbeddingGuide)
        model(**inputs)
        (found,), (image,) = pruned.last, images
    ids = tokenizer("there dog", add_special_tokens=False)["input_ids"]
    words = model.get_input_embeddings()(torch.tensor(ids))
    output = model.base_model.get_image_features(inputs["pixel_values"], return_dict=True)
    projected, states = output.pooler_output[0], output.hidden_states[-2][0, 1:]
    torch.testing.assert_close(image.tower_features, states)
    tokens = VisualTokens(projected, projected, [(4, 4)], tower_features=states)
    expected = MMTok(keep=4).select(tokens, TextGuide(words, None))
    assert found.order.tolist() == expected.order.tolist()
    with pytest.raises(ValueError, match="mmtok reads the question: give attach the processor, or a guide from"):
        eadp.attach(model, method="mmtok", keep=4)


# ── What the runtime gathers ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_tower_features_are_the_mean_of_the_patches_before_the_merger(family: str) -> None:
    model = tiny.model(family)
    inputs = tiny.inputs(family, IMAGES[family][:1])
    with encoded_images() as images, eadp.attach(model, method="vispruner", keep=2) as pruned:
        model(**inputs)
        rows = pruned.adapter.tower_rows  # The patches side by side, in the order of the tokens.
        output = model.base_model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"], return_dict=True)
        call = VisionCall("image", {"image_grid_thw": inputs["image_grid_thw"]}, (), [])
        for image, each in zip(images, rows(call, output, [image.layout for image in images]), strict=True):
            expected = each.rows.unflatten(1, (4, -1)).mean(1)
            torch.testing.assert_close(image.tower_features, expected)


def test_tower_features_of_frames_are_pooled_like_the_tokens() -> None:
    family = "llava_onevision"
    with encoded_images() as images, eadp.attach(tiny.model(family), method="scope", keep=0.5) as pruned:
        tiny.model(family)(**tiny.inputs(family, CLIPS[family][:1]))
        (clip,) = images
        assert clip.tower_features.shape == (len(clip), 32)
        torch.testing.assert_close(clip.tower_features, pruned.adapter.arrange(clip.layout, clip.states))


def prepared(width: int, height: int, side: int) -> Tensor:
    """Noise, padded to a square with 0 and scaled, as LLaVA's processor normalises it."""
    longest = max(width, height)
    square = torch.zeros(1, 3, longest, longest)
    top, left = (longest - height) // 2, (longest - width) // 2
    square[..., top : top + height, left : left + width] = torch.randn(3, height, width) + 3
    return torch.nn.functional.interpolate(square, (side, side), mode="bicubic", antialias=True)[0]


@pytest.mark.parametrize(
    ("size", "rows", "columns"),
    [((640, 480), [0, 1, 2, 21, 22, 23], []), ((300, 600), [], [*range(6), *range(18, 24)]), ((336, 336), [], [])],
)
def test_padding_is_found_in_the_pixels(size: tuple[int, int], rows: list[int], columns: list[int]) -> None:
    found = padded_patches(prepared(*size, 336), 14).view(24, 24)
    expected = torch.zeros(24, 24, dtype=torch.bool)
    expected[rows] = True
    expected[:, columns] = True
    assert torch.equal(found, expected)


def test_an_image_of_one_colour_or_with_a_border_on_one_side_has_no_padding() -> None:
    assert not padded_patches(torch.zeros(3, 56, 56), 14).any()
    one_side = torch.randn(3, 56, 56) + 9
    one_side[:, :28] = 0
    assert not padded_patches(one_side, 14).any()


def test_attach_leaves_padding_out_of_mmtoks_choice() -> None:
    """Of 4×4 patches, the first and the last row show padding."""
    model, inputs = tiny.model("llava"), tiny.inputs("llava", [[(28, 28)]])
    inputs["pixel_values"][:, :, :7] = 0
    inputs["pixel_values"][:, :, -7:] = 0
    guide = EmbeddingGuide(model.get_input_embeddings(), tiny.tokenizer())
    with (
        encoded_images() as images,
        eadp.attach(model, method="mmtok", keep=8, guide=guide, question="Which dog?") as pruned,
    ):
        model(**inputs)
        assert pruned.last[0].indices.tolist() == list(range(4, 12))
    assert np.array_equal(images[0].padding, [*[True] * 4, *[False] * 8, *[True] * 4])
