"""Methods by the tower's attention, on a few tokens whose right answer is worked out by hand from their releases."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.small_tensors import assert_weights_close, merge_weights, unit_vectors
from torch import Tensor

from eadp.core import TowerAttention, VisualTokens
from eadp.methods import get_method
from eadp.methods.hiprune import HiPrune
from eadp.methods.prumerge import PruMerge
from eadp.methods.visionzip import VisionZip


def looked(
    cls: list[float] | None, keys: Tensor, *grids: tuple[int, int], received: list[float] | None = None, **more: object
) -> VisualTokens:
    """keys: N×c, which two heads have as their mean, each far from it. With CLS, each block has that before the
    projector too."""
    n = len(keys)
    spread = 10 * torch.randn(n, keys.shape[1], generator=torch.Generator().manual_seed(5))
    layer = TowerAttention(
        22,
        24,
        torch.stack([keys + spread, keys - spread], dim=1),
        None if cls is None else torch.tensor(cls),
        None if received is None else torch.tensor(received),
    )
    return VisualTokens(
        torch.randn(n, 3),
        None,
        grids,
        attention=[layer],
        tower=torch.randn(n, 5),
        tower_cls=None if cls is None else torch.randn(len(grids), 5),
        **more,
    )


ATTENTION = [0.1, 0.5, 0.05, 0.2, 0.1, 0.05]
KEYS = unit_vectors(0, 45, 10, 90, 80, 100)


def test_visionzip() -> None:
    """4 tokens, half of them contextual: CLS, one dominant patch (token 1), two targets.

    The rest is 0, 2, 3, 4, 5; every ⌊5/2⌋ = 2nd is a target: 0 and 3. By key, token 2 (10°) joins token 0 (0°), tokens
    4 (80°) and 5 (100°) join token 3 (90°). Rows: CLS, dominant, contextual. Slots: patches 0, 1, 3, and the first free
    one, 2."""
    for contextual in (0.5, 2):
        found = VisionZip(keep=4, contextual=contextual).select(looked(ATTENTION, KEYS, (2, 3)))
        assert found.method == "visionzip"
        assert found.merge_space == "tower"
        assert found.indices.tolist() == [0, 1, 2, 3]
        assert found.rows.tolist() == [-1, 1, 0, 3]
        assert_weights_close(found.merge, merge_weights(7, {6: 1}, {1: 1}, {0: 1, 2: 1}, {3: 1, 4: 0.5, 5: 0.5}))


def test_visionzip_without_cls() -> None:
    """By attention received, tokens 1 and 4 dominate. The rest is 0, 2, 3, 5, targets 0 and 3; 2 joins 0, 5 joins 3."""
    tokens = looked(None, KEYS, (2, 3), received=[0.1, 0.3, 0.1, 0.1, 0.3, 0.1])
    found = VisionZip(keep=4, contextual=0.5).select(tokens)
    assert found.method == "visionzip (attention received)"
    assert found.indices.tolist() == [0, 1, 3, 4]
    assert found.rows.tolist() == [1, 4, 0, 3]
    assert_weights_close(found.merge, merge_weights(6, {1: 1}, {4: 1}, {0: 1, 2: 1}, {3: 1, 5: 1}))


def test_visionzip_merges_behind_a_projector_that_takes_no_single_row() -> None:
    """Then CLS cannot be projected either: a second dominant patch, token 3, takes its place; targets are 0 and 4."""
    tokens = replace(looked(ATTENTION, KEYS, (2, 3)), tower=None, tower_cls=None)
    found = VisionZip(keep=4, contextual=2).select(tokens)
    assert found.merge_space == "features"
    assert found.rows.tolist() == [1, 3, 0, 4]
    assert any("after the projector" in note for note in found.notes)
    assert any("does not project CLS" in note for note in found.notes)


def test_visionzip_with_hardly_a_dominant_token() -> None:
    """9 in 10 of 4 are 4 contextual tokens, but CLS stays: 3 targets of 6 patches, every second."""
    found = VisionZip(keep=4, contextual=0.9).select(looked(ATTENTION, KEYS, (2, 3)))
    assert found.rows.tolist() == [-1, 0, 2, 4]
    assert_weights_close(found.merge, merge_weights(7, {6: 1}, {0: 1}, {2: 1, 1: 1}, {4: 1, 3: 0.5, 5: 0.5}))
    with pytest.raises(ValueError, match="cannot send 4 contextual tokens and CLS where a crop keeps 4"):
        VisionZip(keep=4, contextual=4).select(looked(ATTENTION, KEYS, (2, 3)))
    for wrong in (1.0, -1, True):
        with pytest.raises((TypeError, ValueError), match="contextual must"):
            VisionZip(keep=4, contextual=wrong)


def test_visionzips_targets_without_members_stay_as_they_are() -> None:
    """5 of 6 tokens: CLS, token 1, and the rest 0, 2, 3, 4, 5 has the targets 0, 2, 3; 4 and 5 join 3 by their keys."""
    found = VisionZip(keep=5, contextual=3).select(looked(ATTENTION, KEYS, (2, 3)))
    assert_weights_close(found.merge, merge_weights(7, {6: 1}, {1: 1}, {0: 1}, {2: 1}, {3: 1, 4: 0.5, 5: 0.5}))


def crops(whole_last: bool = False) -> VisualTokens:
    """A whole image and a 1×2 mosaic of crops, each of 2×2 tokens: 4 5 | 8 9 above 6 7 | 10 11."""
    numbers = [0, 1, 2, 3, 4, 5, 8, 9, 6, 7, 10, 11]
    if whole_last:
        numbers = [*range(4, 12), 0, 1, 2, 3]
    attention = [0.1, 0.2, 0.9, 0.1, 0.1, 0.2, 0.9, 0.1, 0.9, 0.1, 0.2, 0.1]
    where = {"layout": (1, 2), "sequence": torch.tensor(numbers).argsort()}
    return looked(attention, unit_vectors(*range(12)), (2, 2), (2, 2), (2, 2), **where)


def test_visionzip_reads_joined_crops_as_a_mosaic() -> None:
    """3 rows a crop: CLS, one dominant patch (2, 6, 8), one contextual (the first of the rest: 0, 4, 9).

    The whole image first, in that order. Then the dominant patches of the mosaic row by row, 8 in the upper one and 6
    in the lower one, both CLS rows, both contextual rows."""
    found = VisionZip(keep=9, contextual=1).select(crops())
    assert found.rows.tolist() == [-1, 2, 0, 8, 6, -1, -1, 4, 9]
    assert found.merge[:, 12:].tolist() == [
        [1, 0, 0], *[[0, 0, 0]] * 4, [0, 1, 0], [0, 0, 1], *[[0, 0, 0]] * 2
    ]  # fmt: skip
    assert found.quotas == (3, 3, 3)


def test_visionzip_leaves_tiles_with_marks_between_them_apart() -> None:
    """Models that put the whole image last have other tokens between their tiles: each sends its own rows, in turn."""
    found = VisionZip(keep=9, contextual=1).select(crops(whole_last=True))
    assert found.rows.tolist() == [-1, 6, 4, -1, 8, 9, -1, 2, 0]


def test_visionzip_sends_frame_after_frame() -> None:
    found = VisionZip(keep=9, contextual=1).select(replace(crops(), layout=None, sequence=None))
    assert found.rows.tolist() == [-1, 2, 0, -1, 6, 4, -1, 8, 9]


@pytest.mark.parametrize(("dominant", "contextual"), [(27, 5), (54, 10), (108, 20), (162, 30)])
def test_visionzips_splits(dominant: int, contextual: int) -> None:
    """A dominant token is as it was: weights of 1. A target that others joined has 1 for itself and 1 for their
    mean."""
    generator = torch.Generator().manual_seed(0)
    attention = torch.rand(576, generator=generator).tolist()
    tokens = looked(attention, torch.randn(576, 64, generator=generator), (24, 24))
    found = get_method("visionzip", keep=dominant + contextual).select(tokens)
    assert found.merge is not None
    weights = found.merge.sum(1)
    assert (weights[:dominant] < 1.5).all()
    assert (weights[dominant:] > 1.5).all()
    assert len(weights) == dominant + contextual


def attended(a: list[float], keys: Tensor, grid: tuple[int, int]) -> VisualTokens:
    """For PruMerge+: a without heads. With heads, the CLS row is another: the same backwards."""
    n = len(a)
    layer = TowerAttention(23, 24, keys[:, None], torch.tensor(a).flip(0), cls_full_width=torch.tensor(a))
    return VisualTokens(torch.randn(n, 3), None, [grid], attention=[layer], tower=torch.randn(n, 5))


def test_prumerge() -> None:
    """Of 12 tokens one stands out, token 4: a share of 1/12, so that every ⌊12/3⌋ = 4th from 0 to 10 is an even sample,
    0, 4 and 8, without the outlier. Nearest two by key among all the others, kept ones too: to 4 (0°) tokens 3 (2°) and
    8 (5°); to 0 (90°) 1 (91°) and 2 (93°); to 8 (5°) 3 (2°) and 4 (0°). Each adds its own attention, and the one more
    sums all the unkept ones."""
    a = [0.04, 0.06, 0.05, 0.07, 0.4, 0.04, 0.05, 0.06, 0.07, 0.04, 0.05, 0.06]
    found = PruMerge(neighbours=2).select(
        attended(a, unit_vectors(90, 91, 93, 2, 0, 150, 160, 170, 5, 180, 190, 200), (3, 4))
    )
    assert found.rows.tolist() == [4, 0, 8, -1]
    assert found.indices.tolist() == [0, 4, 8, 11]
    assert found.merge_space == "tower"
    unkept = {j: a[j] for j in range(12) if j not in (0, 4, 8)}
    gained = [{4: 1, 3: a[3], 8: a[8]}, {0: 1, 1: a[1], 2: a[2]}, {8: 1, 3: a[3], 4: a[4]}]
    assert_weights_close(found.merge, merge_weights(12, *gained, unkept))


def test_prumerge_by_the_paper_s_text() -> None:
    """Heads attend by themselves: token 7 stands out, the flipped row's. One even sample for it: every 12th, token 0.
    Neighbours go: to 7 (0°) token 0 is the nearest, but it stays, so 6 and 8."""
    a = [0.05] * 12
    a[4] = 0.4
    tokens = attended(a, unit_vectors(1, 90, 91, 93, 94, 150, 3, 0, 357, 180, 190, 200), (3, 4))
    found = PruMerge(neighbours=2, even=1, among="unkept", per_head=True).select(tokens)
    assert found.rows.tolist() == [7, 0, -1]
    assert_weights_close(found.merge[:1], merge_weights(12, {7: 1, 6: 0.05, 8: 0.05}))


def test_prumerge_s_even_samples() -> None:
    """About three for each outlier; the last token is never one; at least every token where a third stand out."""
    assert [PruMerge().sampling_step(share) for share in (42 / 576, 78 / 576, 1 / 4, 1 / 2)] == [4, 2, 1, 1]
    a = [0.01] * 21
    a[20], a[2] = 0.5, 0.5
    found = PruMerge().select(attended(a, torch.randn(21, 4), (3, 7)))
    assert found.rows.tolist() == [2, 20, 0, 3, 6, 9, 12, 15, 18, -1]


def test_prumerge_without_an_outlier_goes_by_the_highest() -> None:
    found = PruMerge().select(attended([0.1, 0.2, 0.3, 0.25], torch.randn(4, 4), (2, 2)))
    assert found.rows.tolist() == [2, 0, 1, -1]


def test_prumerge_within_a_budget() -> None:
    """6 rows: the one more, ⌊5/4⌉ = 1 by attention, token 5, and 4 of the 7 others at equal steps: ⌊i·7/4⌋ = 0, 1, 3
    and 5 of 0, 1, 2, 3, 4, 6, 7."""
    a = [0.05, 0.1, 0.3, 0.06, 0.04, 0.5, 0.07, 0.1]
    found = PruMerge(keep=6).select(attended(a, torch.randn(8, 4), (2, 4)))
    assert found.rows.tolist() == [5, 0, 1, 3, 6, -1]
    assert len(found) == 6


def test_prumerge_without_cls_or_without_its_row() -> None:
    tokens = looked(None, KEYS, (2, 3), received=[0.1, 0.3, 0.1, 0.1, 0.3, 0.1])
    assert PruMerge(keep=3).select(tokens).method == "prumerge (attention received)"
    with pytest.raises(ValueError, match="must have `cls_full_width`"):
        PruMerge(keep=3).select(looked(ATTENTION, KEYS, (2, 3)))


def received(middle: list[float], deep: list[float], *grids: tuple[int, int], family: str = "llava") -> VisualTokens:
    n = len(middle)
    layers = [
        TowerAttention(layer, 24, torch.zeros(n, 1, 1), received=torch.tensor(row), family=family)
        for layer, row in ((8, middle), (22, deep))
    ]
    return VisualTokens(torch.randn(n, 3), None, grids, attention=layers)


def test_hiprune() -> None:
    """α = 1 and T = 5: one anchor, token 2, at the end of the first of three rows. By index its neighbours are −1,
    held at 0, 1, 3 in the next row, and 5: with it 5 tokens. On the grid they are 1 and 5; then registers follow, the
    deep layer's highest, 8 and 0."""
    middle, deep = [0.0] * 9, [0.3, 0, 0, 0.2, 0, 0, 0.1, 0, 0.4]
    middle[2] = 1
    found = HiPrune(keep=5, alpha=1.0).select(received(middle, deep, (3, 3)))
    assert found.order.tolist() == [2, 0, 1, 3, 5]
    assert found.notes == ("tower layers 8 (object) and 22 (deep) of 24",)
    on_grid = HiPrune(keep=5, alpha=1.0, buffers="grid").select(received(middle, deep, (3, 3)))
    assert on_grid.order.tolist() == [2, 1, 5, 8, 0]
    assert on_grid.indices.tolist() == [0, 1, 2, 5, 8]


def test_hiprune_holds_neighbours_within_the_image() -> None:
    """The last token's neighbours to the right and below are itself: anchor 8, buffers 5 and 7, registers 0 and 3."""
    middle, deep = [0.0] * 9, [0.3, 0, 0, 0.2, 0, 0, 0.1, 0, 0.4]
    middle[8] = 1
    assert HiPrune(keep=5, alpha=1.0).select(received(middle, deep, (3, 3))).order.tolist() == [8, 5, 7, 0, 3]


@pytest.mark.parametrize(("keep", "anchors"), [(25, 0), (26, 1), (75, 2), (128, 3)])
def test_hiprune_rounds_halves_to_even(keep: int, anchors: int) -> None:
    """0.1·25/5 = 0.5 and 0.1·75/5 = 1.5."""
    generator = torch.Generator().manual_seed(0)
    middle, deep = torch.rand(576, generator=generator), torch.rand(576, generator=generator)
    tokens = received(middle.tolist(), deep.tolist(), (24, 24))
    (picked,) = HiPrune(keep=keep).group_tokens(tokens)
    assert picked.anchors.tolist() == middle.topk(anchors).indices.tolist()
    assert len(HiPrune(keep=keep).select(tokens)) == keep


def test_hiprune_never_keeps_more_than_its_budget() -> None:
    """α = 1 and T = 8: round(8/5) = 2 anchors with 4 neighbours each are 10; the last two buffers go."""
    middle = [0.0] * 49
    middle[16], middle[32] = 2, 1
    found = HiPrune(keep=8, alpha=1.0).select(received(middle, [0.0] * 49, (7, 7)))
    assert found.order.tolist() == [16, 32, 9, 15, 17, 23, 25, 31]


def test_hiprune_may_choose_a_token_again_on_qwen() -> None:
    """Attention is summed over the 9 queries there: token 4 has 9·0.5 − 1 = 3.5 left, more than token 0 with 9·0.3. So
    one register less is new. On LLaVA, and with `exact`, token 8 follows."""
    middle, deep = [0.0] * 9, [0.3, 0, 0, 0, 0.5, 0, 0, 0, 0.1]
    middle[4] = 1
    kept = {"llava": [0, 1, 3, 4, 5, 7, 8], "qwen2_5_vl": [0, 1, 3, 4, 5, 7]}
    for family, expected in kept.items():
        tokens = received(middle, deep, (3, 3), family=family)
        assert HiPrune(keep=7, alpha=0.7).select(tokens).indices.tolist() == expected
        assert HiPrune(keep=7, alpha=0.7, exact=True).select(tokens).indices.tolist() == kept["llava"]


def test_hiprune_gives_every_crop_the_same() -> None:
    """⌊11/3⌋ = 3 each; exactly 11 are 4, 4 and 3; one for the first of three crops is 1."""
    deep = torch.rand(12, generator=torch.Generator().manual_seed(0)).tolist()
    tokens = received(deep, deep, (2, 2), (2, 2), (2, 2))
    assert HiPrune(keep=11).select(tokens).quotas == (3, 3, 3)
    assert HiPrune(keep=11, exact=True).select(tokens).quotas == (4, 4, 3)
    assert HiPrune(keep=1).select(tokens).quotas == (1, 0, 0)


def test_hiprune_keeps_positions_on_qwen_alone() -> None:
    method = HiPrune(keep=4)
    assert [method.positions_for(family) for family in ("llava", "llava_next", "qwen2_5_vl", "qwen3_vl")] == [
        *["renumber"] * 2,
        *["keep"] * 2,
    ]


def test_layers_scale_with_depth() -> None:
    """The paper's 9th of 24 and 16th of 32, counted from 0."""
    assert HiPrune(keep=8).vision_layers(24, "llava") == (8, 22)
    assert HiPrune(keep=8).vision_layers(32, "qwen2_5_vl") == (15, 31)
    assert HiPrune(keep=8).vision_layers(48, "llava_onevision") == (17, 46)
    assert HiPrune(keep=8).vision_layers(1, "llava") == (0, 0)
    assert HiPrune(keep=8, object_layer=3, deep_layer=-1).vision_layers(24, "llava") == (3, 23)
    assert VisionZip(keep=8).vision_layers(24, "llava") == (22,)
    assert get_method("prumerge", keep=8).vision_layers(24, "llava") == (23,)
    assert get_method("prumerge", keep=8, layer=-2).vision_layers(24, "llava") == (22,)
    with pytest.raises(ValueError, match="layer 24, but the vision tower has 24"):
        HiPrune(keep=8, object_layer=24).vision_layers(24, "llava")


def test_attention_that_is_missing_is_named() -> None:
    tokens = VisualTokens(torch.randn(4, 3), None, [(2, 2)])
    for name in ("visionzip", "prumerge", "hiprune"):
        with pytest.raises(ValueError, match=f"{name} ranks tokens by the vision tower's attention"):
            get_method(name, keep=2).select(tokens)


def test_attention_must_say_what_a_method_goes_by() -> None:
    with pytest.raises(ValueError, match="a tower without a CLS token must give received"):
        TowerAttention(0, 24, torch.zeros(4, 1, 1))
    only_cls = TowerAttention(0, 24, torch.zeros(4, 1, 1), cls=torch.rand(4))
    with pytest.raises(ValueError, match="not only that of CLS"):
        HiPrune(keep=2).select(VisualTokens(torch.randn(4, 3), None, [(2, 2)], attention=[only_cls] * 2))
