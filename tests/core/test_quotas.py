"""Dynamic quota allocation: how one budget is split over blocks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eadp import core


def maps(*weights, cells=100):
    return [torch.full((10, cells // 10), w / cells) for w in weights]


blocks = st.lists(st.tuples(st.integers(1, 30), st.floats(0, 10)), min_size=1, max_size=12)


@given(blocks=blocks, data=st.data(), rule=st.sampled_from(["importance", "uniform"]))
def test_exact_quotas_add_up_fit_and_leave_no_block_empty(blocks, data, rule):
    weights = [torch.full((size,), w) for size, w in blocks]
    budget = data.draw(st.integers(1, sum(size for size, _ in blocks)))
    quotas = core.allocate(weights, budget, rule)
    assert sum(quotas) == budget
    assert all(q <= size for q, (size, _) in zip(quotas, blocks, strict=True))
    if budget >= len(blocks):
        assert min(quotas) >= 1


@given(weights=st.lists(st.floats(0.1, 10), min_size=1, max_size=8), budget=st.integers(8, 80))
def test_without_caps_an_exact_quota_is_within_one_of_its_share(weights, budget):
    quotas = core.allocate(maps(*weights), budget)
    shares = [budget * w / sum(weights) for w in weights]
    if min(shares) >= 1:
        assert all(abs(q - share) < 1 + 1e-6 for q, share in zip(quotas, shares, strict=True))


def test_importance_follows_the_sum_of_each_map_by_largest_remainder():
    assert core.allocate(maps(5, 3, 2), 10) == [5, 3, 2]
    assert core.allocate(maps(1, 1, 1), 10) == [4, 3, 3]
    assert core.allocate(maps(5.6, 3.3, 1.1), 10) == [6, 3, 1]


def test_the_excess_of_a_full_block_goes_to_the_others_in_proportion():
    weights = [torch.full((10,), 100.0), torch.full((100,), 0.2), torch.full((100,), 0.1)]
    assert core.allocate(weights, 40) == [10, 20, 10]


def test_paper_rounding_floors_but_gives_every_block_one_token():
    assert core.allocate(maps(5.6, 3.3, 1.1), 10, rounding="paper") == [5, 3, 1]
    assert core.allocate(maps(100, 0.01, 0.01), 10, rounding="paper") == [9, 1, 1]


def test_a_budget_below_the_number_of_blocks_goes_to_the_heaviest_blocks():
    assert core.allocate(maps(1, 5, 3, 4), 2) == [0, 1, 0, 1]


def test_global_guided_reserves_a_fifth_and_splits_by_quadrant():
    guide = torch.zeros(4, 4)
    guide[:2, :2], guide[2:, 2:] = 3.0, 1.0
    rest = [torch.rand(4, 4) for _ in range(4)]
    assert core.allocate([guide, *rest], 20, "global_guided", rounding="paper") == [4, 12, 1, 1, 4]
    quotas = core.allocate([guide, *rest], 20, "global_guided")
    assert sum(quotas) == 20
    assert quotas[0] == 4
    assert core.allocate([guide, *rest], 4, "global_guided", rounding="paper")[0] == 0


def test_global_guided_accepts_any_layout():
    guide = torch.arange(6.0).repeat(3, 1) + 0.5
    rest = [torch.rand(50) for _ in range(3)]
    wide = core.allocate([guide, *rest], 55, "global_guided", layout=(1, 3))
    boxes = [(0, 0, 1, 1 / 3), (0, 1 / 3, 1, 2 / 3), (0, 2 / 3, 1, 1)]
    assert wide == core.allocate([guide, *rest], 55, "global_guided", layout=boxes) == [11, 5, 15, 24]


def test_a_cell_that_is_cut_by_a_box_counts_by_its_share():
    guide = torch.tensor([[1.0, 1.0, 1.0]])
    rest = [torch.rand(100), torch.rand(100)]
    assert core.allocate(
        [guide, *rest], 100, "global_guided", layout=[(0, 0, 1, 0.5), (0, 0.5, 1, 1)], rounding="paper"
    ) == [
        3,
        40,
        40,
    ]


def test_all_zero_maps_share_the_budget_evenly():
    assert core.allocate(maps(0, 0), 10) == [5, 5]


B = maps(1, 2, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((B, 0), "budget.*got 0"),
        ((B, 301), "at most the 300 tokens"),
        (([], 1), "at least one token"),
        ((B, 5, "fair"), "'fair'; known: importance, global_guided, uniform"),
        (([torch.tensor([-1.0]), torch.ones(3)], 2), r"weights_per_block\[0\].*-1"),
        (([torch.tensor([float("nan")])], 1), "nan"),
        ((B, 5, "global_guided"), "layout= for 2 local crops"),
        ((B, 5, "global_guided", "exact", (2, 2)), "places 4 crops, but there are 2"),
        ((B, 5, "global_guided", "exact", [(0, 0, 1, 2), (0, 0, 1, 1)]), r"within \[0, 1\]"),
        (([torch.ones(9), torch.ones(3)], 5, "global_guided", "exact", (1, 1)), "rows×columns"),
    ],
)
def test_invalid_input_is_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        core.allocate(*arguments)


def test_released_global_guided_allocation_may_leave_local_crops_empty():
    guide = torch.zeros(5, 5)
    guide[:2, :2] = 1.0  # the top left quadrant, if it ends at side // 2
    guide[4, 4] = 0.5
    crops = [torch.ones(5, 5)] * 4
    quotas = core.allocate([guide, *crops], 23, "global_guided", "released", (2, 2))
    # ⌊0.2·23⌋ = 4 for the whole image; of the remaining 19, ⌊4/4.5·19⌋ = 16 and ⌊0.5/4.5·19⌋ = 2.
    assert quotas == [4, 16, 0, 0, 2]
    assert core.allocate([guide, *crops], 23, "global_guided", "paper", (2, 2))[2:4] == [1, 1]


def test_released_importance_allocation_floors_but_gives_every_crop_one_token():
    blocks = [torch.full((4, 4), value) for value in (1.0, 1.0, 0.001)]
    assert core.allocate(blocks, 9, "importance", "released") == [4, 4, 1]
    assert core.allocate(blocks, 8, "importance", "released") == [3, 3, 1]
    assert sum(core.allocate(blocks, 8, "importance", "exact")) == 8
