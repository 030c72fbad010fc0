"""The controls on a few tokens whose right answer is worked out by hand, and the cells that they share."""

from __future__ import annotations

import pytest
import torch
from helpers.small_tensors import assert_weights_close, merge_weights, unit_vectors
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from eadp.core import (
    TextGuide,
    VisualTokens,
    even_cells,
    largest_grid,
    regular_cells,
)
from eadp.methods import get_method


def test_uniform_and_pool_on_a_regular_grid() -> None:
    """4 of 4×4 tokens: cells of 2×2, whose upper left token is the central one of an even cell."""
    features = torch.randn(16, 3)
    tokens = VisualTokens(features, None, [(4, 4)])
    found = get_method("pool", keep=4).select(tokens)
    assert get_method("uniform", keep=4).select(tokens).indices.tolist() == found.indices.tolist() == [0, 2, 8, 10]
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
        found = get_method(name, keep=5).select(tokens)
        assert found.quotas == (3, 2)
        assert sum(index < 4 for index in found.indices.tolist()) == 3


def test_a_random_draw_depends_on_seed_and_image_alone() -> None:
    def drawn(features: Tensor, seed: int = 0) -> list[int]:
        return get_method("random", keep=4, seed=seed).select(VisualTokens(features, None, [(4, 4)])).indices.tolist()

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
    tokens = VisualTokens(torch.randn(8, 3), None, [(2, 4)], downsampled=torch.randn(2, 3), downsampled_grids=[(1, 2)])
    found = get_method("downsample", keep=3).select(tokens)
    assert found.indices.tolist() == [0, 2] == regular_cells((2, 4), (1, 2))[1].tolist()
    assert_weights_close(found.merge, merge_weights(10, {8: 1}, {9: 1}))
    assert found.notes == ("seen at 1×2 tokens", "2 tokens instead of 3: the next lower resolution")
    with pytest.raises(ValueError, match="lower resolution"):
        get_method("downsample", keep=3).select(VisualTokens(torch.randn(8, 3), None, [(2, 4)]))


def test_topk_is_relevance_alone() -> None:
    """Cosines 1, cos 30°, cos 60° and 0 with the question, and all tokens look the same: the two nearest stay."""
    tokens = VisualTokens(torch.ones(4, 3), unit_vectors(60, 0, 90, 30), [(2, 2)])
    text = TextGuide(unit_vectors(0), unit_vectors(0)[0], sign=1.0)
    found = get_method("topk", keep=2, smoothing=1).select(tokens, text)
    assert found.order.tolist() == [1, 3]
    assert found.indices.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("keep", "quotas"), [(8, [0, 4, 0, 0, 4, 0, 0]), (6, [0, 4, 0, 0, 2, 0, 0]), (3, [0, 0, 0, 3, 0, 0, 0])]
)
def test_uniform_can_keep_whole_frames_at_even_distances(keep: int, quotas: list[int]) -> None:
    clip = VisualTokens(torch.randn(28, 5), None, [(2, 2)] * 7, is_clip=True)
    found = get_method("uniform", keep=keep, whole_frames=True).select(clip)
    assert list(found.quotas) == quotas
    assert [int(((found.indices // 4) == frame).sum()) for frame in range(7)] == quotas
    crops = VisualTokens(clip.features, None, clip.grids)
    assert get_method("uniform", keep=14, whole_frames=True).select(crops).quotas == (2,) * 7
