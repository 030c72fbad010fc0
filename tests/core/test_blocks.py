"""Facility location over several blocks: exact merging, coverage and bound of all blocks, no more work than needed."""

import itertools

import pytest
import torch
from helpers import oracle
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from eadp import core
from eadp.core import blocks as blocks_module


def clip(sizes, seed, d=12, dim_blocks=()):
    """Return features, weights and blocks; the weights of `dim_blocks` are a thousandth of the others."""
    g = torch.Generator().manual_seed(seed)
    ends = list(itertools.accumulate(sizes))
    slices = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    features, weights = torch.randn(ends[-1], d, generator=g), torch.rand(ends[-1], generator=g) + 0.01
    for which in dim_blocks:
        weights[slices[which]] *= 1e-3
    return features, weights, slices


def block_diagonal(features, slices):
    return torch.block_diag(*(core.token_similarity(features[each]) for each in slices))


def coverage(features, weights, slices, chosen):
    """The coverage over all blocks by its definition: 0 is the best single token of each block."""
    single = full = reached = 0.0
    for each in slices:
        sim, w = core.token_similarity(features[each]).double().numpy(), weights[each].double().numpy()
        inside = [i - each.start for i in chosen if each.start <= i < each.stop]
        reached += oracle.objective(sim, w, inside)
        single += max(oracle.objective(sim, w, [i]) for i in range(len(sim)))
        full += oracle.objective(sim, w, range(len(sim)))
    return max(0.0, (reached - single) / (full - single))


@given(
    sizes=st.lists(st.integers(2, 20), min_size=2, max_size=5), seed=st.integers(0, 1000), target=st.floats(0.01, 0.99)
)
def test_picks_by_coverage_are_those_of_a_greedy_choice_over_all_blocks(sizes, seed, target):
    features, weights, slices = clip(sizes, seed)
    found = core.facility_location_by_coverage(features, weights, slices, target)
    picks = found.indices.tolist()
    assert picks == oracle.facility_location(block_diagonal(features, slices), weights, len(picks))[0]
    assert found.coverage == pytest.approx(coverage(features, weights, slices, picks), abs=1e-5)
    assert found.coverage >= target - 1e-5
    assert coverage(features, weights, slices, picks[:-1]) < target


@pytest.mark.parametrize("seed", range(4))
def test_the_bounds_over_blocks_hold_against_every_subset(seed):
    features, weights, slices = clip((5, 4, 3), seed)

    def best(choices):
        return max(coverage(features, weights, slices, each) for each in choices)

    for target in (0.1, 0.5, 0.9):
        found = core.facility_location_by_coverage(features, weights, slices, target)
        assert best(itertools.combinations(range(12), len(found.indices))) <= found.bound + 1e-6
    for quotas in ((2, 2, 1), (3, 0, 2)):
        found = core.facility_location_by_quota(features, weights, slices, quotas)
        inside = [itertools.combinations(range(b.start, b.stop), q) for b, q in zip(slices, quotas, strict=True)]
        top = best(sum(each, ()) for each in itertools.product(*map(list, inside)))
        assert found.coverage <= top + 1e-6 <= found.bound + 2e-6


def test_a_block_without_picks_counts_as_not_represented():
    features, weights, slices = clip((8, 8), 0)
    both = core.facility_location_by_quota(features, weights, slices, (4, 4))
    one = core.facility_location_by_quota(features, weights, slices, (8, 0))
    assert both.single_objective == pytest.approx(one.single_objective, rel=1e-5)
    assert both.full_objective == pytest.approx(one.full_objective, rel=1e-5)
    assert one.coverage == 0 < both.coverage


def test_only_the_blocks_and_picks_that_are_needed_are_solved(monkeypatch):
    features, weights, slices = clip([40] * 12, 0, dim_blocks=range(2, 12))
    solved = []

    def counting(similarity, weights, keep, **settings):
        solved.append(keep)
        return core.facility_location(similarity, weights, keep, **settings)

    expected = core.facility_location_by_coverage(features, weights, slices, 0.2)
    monkeypatch.setattr(blocks_module, "facility_location", counting)
    found = core.facility_location_by_coverage(features, weights, slices, 0.2)
    assert found.indices.tolist() == expected.indices.tolist()
    assert found.coverage >= 0.2
    assert len(solved) <= 6  # of 12 blocks, only the two bright ones
    assert sum(solved) <= 6 * len(found.indices)


class Operations(TorchDispatchMode):
    """Counts the operators of ATen within a block."""

    count = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.count += 1
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_blocks_that_give_no_token_cost_a_fraction_of_a_solution(backend):
    """One bright block, in which five tokens stand for nearly everything, among 8 or 16 dim ones."""

    def operations(dim):
        g = torch.Generator().manual_seed(0)
        features, weights, slices = clip([64] * (1 + dim), 0, dim_blocks=range(1, 1 + dim))
        centres = torch.randn(5, features.shape[1], generator=g)
        features[:64] = centres[torch.arange(64) % 5] + 0.02 * torch.randn(64, features.shape[1], generator=g)
        with Operations() as counted:
            found = core.facility_location_by_coverage(features, weights, slices, 0.9, backend=backend)
        assert len(found.indices) == 5
        return counted.count

    features, weights, _ = clip([64], 0)
    with Operations() as to_the_end:
        core.facility_location(core.token_similarity(features), weights, 64, backend="torch")
    few, many = operations(8), operations(16)
    assert (many - few) / 8 < to_the_end.count / 100
    assert many < to_the_end.count / 2


def test_all_weights_zero_is_an_error():
    features, weights, slices = clip((4, 4), 0)
    with pytest.raises(ValueError, match="weights are all 0"):
        core.facility_location_by_coverage(features, 0 * weights, slices, 0.5)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_blocks_of_equal_size_are_divided_among_threads_without_changing_the_picks(threads):
    g = torch.Generator().manual_seed(0)
    features, weights = torch.randn(7 * 30, 8, generator=g), torch.rand(7 * 30, generator=g)
    weights[60:90] = 0
    blocks = [slice(30 * i, 30 * (i + 1)) for i in range(7)]
    quotas = [5, 30, 4, 0, 1, 12, 9]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = core.facility_location_by_quota(features, weights, blocks, quotas)
    finally:
        torch.set_num_threads(before)
    order = []
    for block, quota in zip(blocks, quotas, strict=True):
        if quota:
            w = weights[block] if weights[block].any() else torch.ones(30)
            alone = core.facility_location(core.token_similarity(features[block]), w, quota)
            order += (alone.indices + block.start).tolist()
    assert sorted(found.indices.tolist()) == sorted(order)


def test_an_invalid_block_among_equal_ones_is_named():
    features, weights = torch.randn(60, 8, generator=torch.Generator().manual_seed(0)), torch.ones(60)
    features[35, 2] = torch.nan
    with pytest.raises(ValueError, match=r"features\[5, 2\] is nan"):
        core.facility_location_by_quota(features, weights, [slice(0, 30), slice(30, 60)], [3, 3])
    weights[40] = -1
    with pytest.raises(ValueError, match=r"weights\[10\] is -1"):
        core.facility_location_by_quota(features.nan_to_num(), weights, [slice(0, 30), slice(30, 60)], [3, 3])
