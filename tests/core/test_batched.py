"""Solvers that work on all blocks at once in torch operations."""

import pytest
import torch
from helpers.block_batches import make_problem, similarities

from eadp import core
from eadp.core import batched


def solve(batch, **options):
    return batched.solve_facility(batch.matrices, batch.weights, batch.sizes, batch.limits, None, batch.most, **options)


@pytest.mark.parametrize("precision", [torch.float64, torch.float32], ids=["float64", "compensated float32"])
@pytest.mark.parametrize("largest", [12, 60])
def test_facility_location_has_the_picks_of_numba(precision, largest):
    for first in range(0, 210, 21):
        batch = similarities([make_problem(seed, largest) for seed in range(first, first + 21)])
        found = solve(batch, precision=precision)
        for block, (size, keep) in enumerate(zip(batch.sizes.tolist(), batch.limits.tolist(), strict=True)):
            matrix, weights = batch.matrices[block, :size, :size], batch.weights[block, :size]
            expected = core.facility_location(matrix, weights, keep, backend="numba")
            assert found.order[block, :keep].tolist() == expected.indices.tolist()
            torch.testing.assert_close(found.gains[block, :keep].double(), expected.gains, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("selection", ["dpp", "max_min"])
def test_blocks_of_different_sizes_are_each_solved_by_themselves(selection):
    problems = [make_problem(seed, 30) for seed in range(21)]
    features = torch.cat([each.features.new_zeros(len(each.features), 12) for each in problems])
    blocks, start = [], 0
    for each in problems:
        n, d = each.features.shape
        features[start : start + n, :d] = each.features
        blocks.append(slice(start, start + n))
        start += n
    quotas = [each.keep if which % 5 else 0 for which, each in enumerate(problems)]
    weights = torch.cat([each.weights for each in problems])
    if selection == "dpp":
        both = [core.dpp_by_quota(features, weights, blocks, quotas, backend=each) for each in ("numba", "torch")]
    else:
        both = [core.max_min_by_quota(features, blocks, quotas, backend=each) for each in ("numba", "torch")]
    assert both[0].indices.tolist() == both[1].indices.tolist()
    torch.testing.assert_close(both[0].gains, both[1].gains, atol=1e-9, rtol=1e-6)


def test_plain_float32_sums_would_pick_other_tokens():
    """The control of the compensated sums: gains that differ by 1e-5, which decides, are lost in a sum of float32."""
    n = 3000
    g = torch.Generator().manual_seed(0)
    rows = torch.rand(2, n, generator=g)
    rows[1] = rows[0][torch.randperm(n, generator=g)]
    rows[1, 7] += 2e-5 * rows[0].sum()
    matrices = torch.zeros(1, n, n)
    matrices[0, :2] = rows
    sizes, limits = torch.tensor([n], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    found = batched.solve_facility(matrices, torch.ones(1, n), sizes, limits, None, 1, precision=torch.float32)
    assert found.order.tolist() == [[1]]
