"""Each method on a few tokens whose right answer is worked out by hand from what its paper says."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from eadp.core import (
    Selection,
    TextGuide,
    TowerAttention,
    VisualTokens,
    even_cells,
    largest_grid,
    outliers,
    regular_cells,
)
from eadp.core.merging import room_after, room_before
from eadp.methods import NAMES, make
from eadp.methods.base import REGISTRY
from eadp.methods.hiprune import HiPrune
from eadp.methods.visionzip import VisionZip


def directions(*degrees: float) -> Tensor:
    angle = torch.tensor(degrees).deg2rad()
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def rows(total: int, *weights: dict[int, float]) -> Tensor:
    """Merge weights by column."""
    merge = torch.zeros(len(weights), total)
    for row, columns in enumerate(weights):
        for column, weight in columns.items():
            merge[row, column] = weight
    return merge


def same(merge: Tensor | None, expected: Tensor) -> None:
    assert merge is not None
    torch.testing.assert_close(merge, expected)


# ── Every method ──────────────────────────────────────────────────────────────────────────────────────────────────────

BEFORE = [name for name in NAMES if REGISTRY[name].stage == "before"]


@pytest.mark.parametrize("name", BEFORE)
@given(grids=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=4), data=st.data())
def test_exactly_the_budget_whatever_the_blocks(name: str, grids: list[tuple[int, int]], data: st.DataObject) -> None:
    """With and without CLS, from one token to all of them. `downsample` keeps whole rows and columns: at most T."""
    total = sum(rows * columns for rows, columns in grids)
    keep, has_cls = data.draw(st.integers(1, total)), data.draw(st.booleans())
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    method = make(name, keep=keep)
    seen_at = method.resolution(grids, square=False)
    extra = sum(rows * columns for rows, columns in seen_at) or len(grids)
    tokens = VisualTokens(
        torch.randn(total, 6, generator=g),
        torch.randn(total, 5, generator=g),
        grids,
        attention=[
            TowerAttention(layer, 24, torch.randn(total, 2, 3, generator=g), cls, torch.rand(total, generator=g))
            for layer in method.vision_layers(24, "llava")
            for cls in [torch.rand(total, generator=g) if has_cls else None]
        ],
        extra=torch.randn(extra, 6, generator=g) if has_cls or seen_at else None,
        extra_grids=seen_at,
    )
    text = TextGuide(torch.randn(3, 5, generator=g), torch.randn(5, generator=g))
    assume(total > 1 or "text" not in method.needs)  # A map of one token says nothing: an error of its own.
    found = method.select(tokens, text)
    assert len(found) == (keep if name != "downsample" else extra) <= keep
    assert bool((found.indices.diff() > 0).all())
    assert 0 <= int(found.indices[0]) <= int(found.indices[-1]) < total == found.total
    assert sum(found.quotas) == len(found)
    assert found.quotas == tokens.quotas(found.indices)
    if found.merge is not None:
        assert found.merge.shape in ((len(found), total), (len(found), total + extra))
        assert bool((found.merge >= 0).all())
        assert bool((found.merge.sum(1) > 0).all()), "no token is empty"


# ── Without attention ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_divprune() -> None:
    """1 − cos of directions at 0°, 10°, 90° and 200°, in the order of picking:

    nearest neighbours are 10° (0.02), 10° (0.02), 80° (0.83) and 110° (1.34) away: token 3 first;
    from it the others are 160° (1.94), 170° (1.98) and 110° (1.34) away: token 1;
    to their nearest of {3, 1}, token 0 has 0.02 and token 2 has 0.83: token 2.
    """
    tokens = VisualTokens(directions(0, 10, 90, 200), None, [(2, 2)])
    found = make("divprune", keep=3).select(tokens)
    assert found.order.tolist() == [3, 1, 2]
    assert found.indices.tolist() == [1, 2, 3]
    expected = [1 - math.cos(math.radians(angle)) for angle in (110, 170, 80)]
    torch.testing.assert_close(found.gains, torch.tensor(expected, dtype=found.gains.dtype), rtol=1e-5, atol=1e-5)


COSINES = (-1.0, -0.8, -0.5, 0.0)


def asked(sign: float = -1.0) -> tuple[VisualTokens, TextGuide]:
    """Tokens 0 and 1 look alike, tokens 2 and 3 too, at a right angle to them. Their cosines with the question are
    −1, −0.8, −0.5 and 0."""
    aligned = torch.tensor([[c, math.sqrt(1 - c * c)] for c in COSINES]) * torch.tensor([[3.0], [1.0], [2.0], [5.0]])
    return VisualTokens(directions(0, 0, 90, 90), aligned, [(2, 2)]), TextGuide(
        None, torch.tensor([4.0, 0.0]), sign=sign
    )


def test_cdpruner() -> None:
    """r = −cos = 1, 0.8, 0.5, 0, which min-max leaves as they are. The kernel's diagonal is r² = 1, 0.64, 0.25, 0:
    token 0.

    Given it, token 1 has 0.64 − (0.8)² = 0 left, token 2 still 0.25: token 2, though token 1 is more relevant."""
    found = make("cdpruner", keep=2).select(*asked())
    assert found.order.tolist() == [0, 2]
    torch.testing.assert_close(found.gains.float(), torch.tensor([1.0, 0.25]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.scores, torch.tensor([1.0, 0.8, 0.5, 0.0]), rtol=1e-5, atol=1e-5)


def test_cdpruner_weighs_relevance_by_theta() -> None:
    """θ = ½ gives α = ½/(2·½) = ½, so r = 1 becomes e^½ and the first variance e. θ = 0 leaves diversity alone: 1."""
    assert make("cdpruner", keep=1, theta=0.5).select(*asked()).gains.item() == pytest.approx(math.e, rel=1e-5)
    assert make("cdpruner", keep=1, theta=0.0).select(*asked()).gains.item() == pytest.approx(1, rel=1e-5)
    with pytest.raises(ValueError, match=r"theta must lie in \[0, 1\)"):
        make("cdpruner", keep=1, theta=1.0)


def test_cdpruner_averages_segments_and_takes_the_guides_sign() -> None:
    """A second segment that points the other way: (cos − cos) / 2 = 0 everywhere, a map that says nothing."""
    tokens, text = asked()
    assert isinstance(text.pooled, Tensor)
    with pytest.raises(ValueError, match="constant"):
        make("cdpruner", keep=2).select(tokens, TextGuide(None, [text.pooled, -text.pooled]))
    assert make("cdpruner", keep=1).select(*asked(sign=+1.0)).indices.tolist() == [3]


def dots(*values: float) -> tuple[VisualTokens, TextGuide]:
    features = torch.randn(len(values), 3, generator=torch.Generator().manual_seed(0))
    return VisualTokens(features, torch.tensor(values)[:, None], [(1, len(values))]), TextGuide(None, torch.ones(1))


def test_trim() -> None:
    """The dots are negated: 3, −1, 0, −2, 1 ranks the tokens 3, 1, 2, 4, 0. Of 3 tokens one is the mean of the others:
    tokens 1 and 3 stay, and (0 + 2 + 4)/3 takes the last free slot, 4."""
    found = make("trim", keep=3).select(*dots(3, -1, 0, -2, 1))
    assert found.indices.tolist() == [1, 3, 4]
    same(found.merge, rows(5, {1: 1}, {3: 1}, {0: 1 / 3, 2: 1 / 3, 4: 1 / 3}))
    torch.testing.assert_close(found.scores, torch.softmax(torch.tensor([-3.0, 1, 0, 2, -1]), 0))


def test_trims_mean_is_last_where_the_last_token_is_kept() -> None:
    """Tokens 1 and 4 stay. The last free slot is 3: token 4 moves up to it, and slot 4 is the mean's."""
    found = make("trim", keep=3).select(*dots(3, -1, 0, 1, -2))
    assert found.indices.tolist() == [1, 3, 4]
    same(found.merge, rows(5, {1: 1}, {4: 1}, {0: 1 / 3, 2: 1 / 3, 3: 1 / 3}))


def test_trim_lets_the_image_decide() -> None:
    """Seven equal scores and a higher one: the quartiles are equal, so the threshold is that score, and one is above
    it."""
    found = make("trim").select(*dots(0, 0, 0, -5, 0, 0, 0, 0))
    assert found.indices.tolist() == [3, 7]
    same(found.merge, rows(8, {3: 1}, dict.fromkeys((0, 1, 2, 4, 5, 6, 7), 1 / 7)))


def test_outliers() -> None:
    """Of 1 … 8, 14 and 15: Q1 = 3.25, Q3 = 7.75 by linear interpolation, so the threshold is 14.5."""
    assert outliers(torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8, 15, 14])).nonzero().flatten().tolist() == [8]


def test_topk_is_relevance_alone() -> None:
    """Cosines 1, cos 30°, cos 60° and 0 with the question, and all tokens look the same: the two nearest stay."""
    tokens = VisualTokens(torch.ones(4, 3), directions(60, 0, 90, 30), [(2, 2)])
    text = TextGuide(directions(0), directions(0)[0], sign=1.0)
    found = make("topk", keep=2, smoothing=1).select(tokens, text)
    assert found.order.tolist() == [1, 3]
    assert found.indices.tolist() == [1, 3]


def test_methods_that_need_the_question_say_so() -> None:
    tokens, text = asked()
    for name in ("cdpruner", "trim"):
        with pytest.raises(ValueError, match=f"{name} needs the question"):
            make(name, keep=2).select(tokens)
        with pytest.raises(ValueError, match=f"{name} needs `aligned`"):
            make(name, keep=2).select(VisualTokens(tokens.features, None, tokens.grids), text)


# ── Controls ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_uniform_and_pool_on_a_regular_grid() -> None:
    """4 of 4×4 tokens: cells of 2×2, whose upper left token is the central one of an even cell."""
    features = torch.randn(16, 3)
    tokens = VisualTokens(features, None, [(4, 4)])
    found = make("pool", keep=4).select(tokens)
    assert make("uniform", keep=4).select(tokens).indices.tolist() == found.indices.tolist() == [0, 2, 8, 10]
    assert found.merge is not None
    pooled = F.avg_pool2d(features.T.view(1, 3, 4, 4), 2)[0].flatten(1).T
    torch.testing.assert_close(found.merge @ features, pooled)


def test_a_count_without_factors_has_rows_that_differ_by_one() -> None:
    """5 cells on 4×4: two strips make cells of 2 by 1.6, three would make 1.33 by 2.4. So 2 + 3 cells."""
    owner, centres = even_cells((4, 4), 5)
    assert owner.view(4, 4).tolist() == [[0, 0, 1, 1]] * 2 + [[2, 3, 4, 4]] * 2
    assert centres.tolist() == [0, 2, 8, 9, 10]


@given(st.integers(1, 13), st.integers(1, 13), st.data())
def test_even_cells_tile_the_grid(height: int, width: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, height * width))
    owner, centres = even_cells((height, width), count)
    sizes = owner.bincount(minlength=count)
    assert len(sizes) == count
    assert int(sizes.min()) >= 1
    assert owner[centres].tolist() == list(range(count))
    assert bool((centres.diff() > 0).all())


@given(st.integers(1, 13), st.integers(1, 13), st.data())
def test_the_largest_grid_fits(height: int, width: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, height * width))
    h, w = largest_grid((height, width), count)
    assert 1 <= h <= height
    assert 1 <= w <= width
    assert h * w <= count
    side, other = largest_grid((height, width), count, square=True)
    assert side == other <= min(height, width)
    assert side**2 <= count


def test_grids_of_common_budgets() -> None:
    budgets = {32: (4, 8), 64: (8, 8), 128: (8, 16), 192: (12, 16), 576: (24, 24)}
    assert {count: largest_grid((24, 24), count) for count in budgets} == budgets


def test_crops_share_alike() -> None:
    """5 tokens over blocks of 2×2 and 2×4: 3 and 2 (the first of equal remainders)."""
    tokens = VisualTokens(torch.randn(12, 2), None, [(2, 2), (2, 4)])
    for name in ("uniform", "pool"):
        found = make(name, keep=5).select(tokens)
        assert found.quotas == (3, 2)
        assert sum(index < 4 for index in found.indices.tolist()) == 3


def test_a_random_draw_depends_on_seed_and_image_alone() -> None:
    def drawn(features: Tensor, seed: int = 0) -> list[int]:
        return make("random", keep=4, seed=seed).select(VisualTokens(features, None, [(4, 4)])).indices.tolist()

    features = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
    state = torch.get_rng_state()
    assert drawn(features) == drawn(features * (1 + 1e-6 * torch.randn(16, 32)))
    torch.set_rng_state(state)
    assert drawn(features) != drawn(features, seed=1)
    assert drawn(features) != drawn(features.flip(0))
    often = torch.bincount(torch.tensor([drawn(features, seed) for seed in range(400)]).flatten(), minlength=16)
    assert int(often.sum()) == 1600
    assert 60 < int(often.min()) <= int(often.max()) < 140, "100 times each, give or take"


def test_downsample_puts_the_small_image_on_even_cells() -> None:
    """2×4 tokens seen at 1×2: two cells of 2×2, centred on tokens 0 and 2."""
    tokens = VisualTokens(torch.randn(8, 3), None, [(2, 4)], extra=torch.randn(2, 3), extra_grids=[(1, 2)])
    found = make("downsample", keep=3).select(tokens)
    assert found.indices.tolist() == [0, 2] == regular_cells((2, 4), (1, 2))[1].tolist()
    same(found.merge, rows(10, {8: 1}, {9: 1}))
    assert found.notes == ("seen at 1×2 tokens", "2 tokens instead of 3: the resolution nearest below")
    with pytest.raises(ValueError, match="lower resolution"):
        make("downsample", keep=3).select(VisualTokens(torch.randn(8, 3), None, [(2, 4)]))


# ── By the tower's attention ──────────────────────────────────────────────────────────────────────────────────────────


def looked(
    cls: list[float] | None, keys: Tensor, grid: tuple[int, int], received: list[float] | None = None
) -> VisualTokens:
    """keys: N×c, which two heads have as their mean, each far from it."""
    n = len(keys)
    spread = 10 * torch.randn(n, keys.shape[1], generator=torch.Generator().manual_seed(5))
    layer = TowerAttention(
        22,
        24,
        torch.stack([keys + spread, keys - spread], dim=1),
        None if cls is None else torch.tensor(cls),
        None if received is None else torch.tensor(received),
    )
    return VisualTokens(torch.randn(n, 3), None, [grid], attention=[layer])


ATTENTION = [0.1, 0.5, 0.05, 0.2, 0.1, 0.05]
KEYS = directions(0, 45, 10, 90, 80, 100)


def test_visionzip() -> None:
    """4 tokens, half of them contextual: CLS, one dominant patch (token 1), two targets.

    The rest is 0, 2, 3, 4, 5; every ⌊5/2⌋ = 2nd is a target: 0 and 3. By key, token 2 (10°) joins token 0 (0°), tokens
    4 (80°) and 5 (100°) join token 3 (90°). Slots: patches 0, 1, 3, and the first free one, 2; CLS comes first."""
    tokens = looked(ATTENTION, KEYS, (2, 3))
    tokens = VisualTokens(tokens.features, None, tokens.grids, None, tokens.attention, torch.randn(1, 3))
    found = VisionZip(keep=4, contextual=0.5).select(tokens)
    assert found.method == "visionzip"
    assert found.indices.tolist() == [0, 1, 2, 3]
    same(found.merge, rows(7, {6: 1}, {0: 1, 2: 1}, {1: 1}, {3: 1, 4: 0.5, 5: 0.5}))


def test_visionzip_without_cls() -> None:
    """By attention received, tokens 1 and 4 dominate. The rest is 0, 2, 3, 5, targets 0 and 3; 2 joins 0, 5 joins 3."""
    found = VisionZip(keep=4, contextual=0.5).select(looked(None, KEYS, (2, 3), [0.1, 0.3, 0.1, 0.1, 0.3, 0.1]))
    assert found.method == "visionzip (attention received)"
    assert found.indices.tolist() == [0, 1, 3, 4]
    same(found.merge, rows(6, {0: 1, 2: 1}, {1: 1}, {3: 1, 5: 1}, {4: 1}))


@pytest.mark.parametrize(("dominant", "contextual"), [(27, 5), (54, 10), (108, 20), (162, 30)])
def test_visionzips_splits(dominant: int, contextual: int) -> None:
    """A dominant token is as it was: weights of 1. A target that others joined has 1 for itself and 1 for their
    mean."""
    generator = torch.Generator().manual_seed(0)
    attention = torch.rand(576, generator=generator).tolist()
    tokens = looked(attention, torch.randn(576, 64, generator=generator), (24, 24))
    tokens = VisualTokens(tokens.features, None, tokens.grids, None, tokens.attention, torch.randn(1, 3))
    found = make("visionzip", keep=dominant + contextual).select(tokens)
    assert found.merge is not None
    weights = found.merge.sum(1)
    assert int((weights < 1.5).sum()) == dominant
    assert int((weights > 1.5).sum()) == contextual


def test_prumerge() -> None:
    """4 tokens: one for the rest, and of 3 others round(3/2) = 2 by attention, tokens 2 and 5, and one even: the centre
    of 2×4 tokens, token 1.

    Nearest two unkept by key: to token 1 (0°) tokens 0 (5°) and 4 (350°); to token 2 (90°) tokens 3 (95°) and 7 (80°);
    to token 5 (180°) tokens 6 (175°) and 3 (95°). Each adds its own attention; the rest's token sums all five of
    them."""
    a = [0.05, 0.1, 0.3, 0.06, 0.04, 0.2, 0.07, 0.1]
    tokens = looked(a, directions(5, 0, 90, 95, 350, 180, 175, 80), (2, 4))
    layer = tokens.attention[0]
    flat = TowerAttention(23, 24, layer.keys.mean(1, keepdim=True), layer.cls)
    found = make("prumerge", keep=4, neighbours=2).select(
        VisualTokens(tokens.features, None, tokens.grids, attention=[flat])
    )
    assert found.indices.tolist() == [1, 2, 5, 7]
    unkept = {j: a[j] for j in (0, 3, 4, 6, 7)}
    same(found.merge, rows(8, {1: 1, 0: a[0], 4: a[4]}, {2: 1, 3: a[3], 7: a[7]}, {5: 1, 6: a[6], 3: a[3]}, unkept))


def test_prumerge_replaces_an_even_token_that_is_kept_already() -> None:
    """The centre, token 1, is one of the two by attention (1 and 2): the third is the next by attention, token 5."""
    tokens = looked([0.05, 0.3, 0.3, 0.05, 0.05, 0.1, 0.05, 0.1], torch.randn(8, 4), (2, 4))
    found = make("prumerge", keep=4).select(tokens)
    assert found.indices.tolist() == [1, 2, 5, 7]


def test_prumerge_lets_the_image_decide() -> None:
    """One attention stands out (token 6), so one by attention, one even (the centre, 1), and the rest's."""
    found = make("prumerge").select(looked([0.05] * 6 + [0.65, 0.05], torch.randn(8, 4), (2, 4)))
    assert found.indices.tolist() == [1, 6, 7]


def received(middle: list[float], deep: list[float], grid: tuple[int, int]) -> VisualTokens:
    n = len(middle)
    layers = [
        TowerAttention(layer, 24, torch.zeros(n, 1, 1), received=torch.tensor(row))
        for layer, row in ((9, middle), (22, deep))
    ]
    return VisualTokens(torch.randn(n, 3), None, [grid], attention=layers)


def test_hiprune() -> None:
    """α = 1 and T = 5: one anchor, token 2, at the end of the first of three rows. Its neighbours are 1 and 5; token 3
    comes next in the sequence but lies at the start of the next row. Registers: the deep layer's highest, 8 and 0."""
    middle, deep = [0.0] * 9, [0.3, 0, 0, 0.2, 0, 0, 0.1, 0, 0.4]
    middle[2] = 1
    found = HiPrune(keep=5, alpha=1.0).select(received(middle, deep, (3, 3)))
    assert found.order.tolist() == [2, 1, 5, 8, 0]
    assert found.indices.tolist() == [0, 1, 2, 5, 8]
    assert found.notes == ("tower layers 9 (object) and 22 (deep) of 24",)


def test_hiprune_never_keeps_more_than_its_budget() -> None:
    """α = 1 and T = 8: round(8/5) = 2 anchors with 4 neighbours each are 10; the last two buffers go."""
    middle = [0.0] * 49
    middle[16], middle[32] = 2, 1
    found = HiPrune(keep=8, alpha=1.0).select(received(middle, [0.0] * 49, (7, 7)))
    assert found.order.tolist() == [16, 32, 9, 15, 17, 23, 25, 31]


def test_hiprune_by_default() -> None:
    """round(0.1 · 128 / 5) = round(2.56) = 3 anchors."""
    generator = torch.Generator().manual_seed(0)
    middle, deep = torch.rand(576, generator=generator), torch.rand(576, generator=generator)
    found = HiPrune(keep=128).select(received(middle.tolist(), deep.tolist(), (24, 24)))
    assert found.order[:3].tolist() == middle.topk(3).indices.tolist()
    assert len(found) == 128


def test_layers_scale_with_depth() -> None:
    assert HiPrune(keep=8).vision_layers(24, "llava") == (9, 22)
    assert HiPrune(keep=8).vision_layers(32, "qwen2_5_vl") == (16, 31)
    assert HiPrune(keep=8).vision_layers(48, "llava_onevision") == (18, 46)
    assert HiPrune(keep=8).vision_layers(1, "llava") == (0, 0)
    assert HiPrune(keep=8, object_layer=3, deep_layer=-1).vision_layers(24, "llava") == (3, 23)
    assert VisionZip(keep=8).vision_layers(24, "llava") == (22,)
    assert make("prumerge", keep=8).vision_layers(24, "llava") == (23,)
    with pytest.raises(ValueError, match="layer 24, but the vision tower has 24"):
        HiPrune(keep=8, object_layer=24).vision_layers(24, "llava")


def test_attention_that_is_missing_is_named() -> None:
    tokens = VisualTokens(torch.randn(4, 3), None, [(2, 2)])
    for name in ("visionzip", "prumerge", "hiprune"):
        with pytest.raises(ValueError, match=f"{name} goes by the vision tower's attention"):
            make(name, keep=2).select(tokens)


def test_attention_must_say_what_a_method_goes_by() -> None:
    with pytest.raises(ValueError, match="must say what its tokens received"):
        TowerAttention(0, 24, torch.zeros(4, 1, 1))
    only_cls = TowerAttention(0, 24, torch.zeros(4, 1, 1), cls=torch.rand(4))
    with pytest.raises(ValueError, match="not only what CLS attends to"):
        HiPrune(keep=2).select(VisualTokens(torch.randn(4, 3), None, [(2, 2)], attention=[only_cls] * 2))


def test_room_for_one_more_token() -> None:
    kept = torch.tensor([0, 2, 5])
    assert room_after(kept, 6).tolist() == [0, 2, 4, 5]
    assert room_before(kept, 6).tolist() == [0, 1, 2, 5]
    with pytest.raises(ValueError, match="no room"):
        room_after(torch.arange(3), 3)


def test_selections_are_counted_by_block() -> None:
    tokens = VisualTokens(torch.randn(8, 2), None, [(2, 2), (1, 4)])
    assert tokens.quotas(torch.tensor([0, 3, 4])) == (2, 1)
    assert isinstance(make("random", keep=3).select(tokens), Selection)
