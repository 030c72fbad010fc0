"""Greedy DPP and max-min in Triton: the picks of numba, for every kind of input, size, budget and precision."""

import pytest
import torch
from helpers.block_batches import make_problem, stack

from eadp import core

pytest.importorskip("triton", reason="Triton is not installed")

from eadp.core.triton import dpp, max_min

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def kernels(problems, dtype):
    """Return the DPP kernels and the distances of several blocks as batches."""
    weights, limits = [each.weights for each in problems], [each.keep for each in problems]
    cosines = [core.token_cosine(each.features) for each in problems]
    made = [(w.double()[:, None] * cosine * w.double()).to(dtype) for w, cosine in zip(weights, cosines, strict=True)]
    apart = [(1 - cosine).to(dtype) for cosine in cosines]
    return stack(made, weights, limits), stack(apart, weights, limits)


def solve_dpp(batch):
    return dpp.solve_dpp(batch.matrices, batch.sizes, batch.limits, batch.most)


def solve_max_min(batch):
    return max_min.solve_max_min(batch.matrices, batch.sizes, batch.limits, batch.most, 2 * 2.0**-20)


def assert_picks_of_numba(solve, batch, found):
    order, gains = found
    for block, (size, keep) in enumerate(zip(batch.sizes.tolist(), batch.limits.tolist(), strict=True)):
        expected = solve(batch.matrices[block, :size, :size], keep, backend="numba")
        assert order[block, :keep].tolist() == expected.indices.tolist()
        torch.testing.assert_close(gains[block, :keep], expected.gains.double(), atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("first", range(0, 105, 21))
def test_ragged_batches_have_the_picks_of_numba(first, dtype):
    variances, apart = kernels([make_problem(seed, 14) for seed in range(first, first + 21)], dtype)
    assert_picks_of_numba(core.dpp, variances, solve_dpp(variances))
    assert_picks_of_numba(core.max_min, apart, solve_max_min(apart))


def test_blocks_that_are_walked_in_chunks(monkeypatch):
    for module in (dpp, max_min):
        monkeypatch.setattr(module, "CHUNK", 16)
    monkeypatch.setattr(max_min, "NEIGHBOUR_CHUNK", 16)
    variances, apart = kernels([make_problem(seed, 40) for seed in range(500, 504)], torch.float64)
    assert_picks_of_numba(core.dpp, variances, solve_dpp(variances))
    assert_picks_of_numba(core.max_min, apart, solve_max_min(apart))


@pytest.mark.parametrize("first", [600, 621])
def test_large_blocks_are_spread_over_many_programs(first, monkeypatch):
    monkeypatch.setattr(dpp, "LARGEST_AT_ONCE", 0)
    monkeypatch.setattr(dpp, "MANY_BLOCKS", 100)
    monkeypatch.setattr(dpp, "OWN_CHUNK", 8)
    variances, _ = kernels([make_problem(seed, 20) for seed in range(first, first + 21)], torch.float64)
    assert_picks_of_numba(core.dpp, variances, solve_dpp(variances))
