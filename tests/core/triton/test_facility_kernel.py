"""Facility location in Triton: the picks of numba, for every kind of input, size, budget and precision."""

import pytest
import torch
from helpers.block_batches import make_problem, similarities

from eadp import core

pytest.importorskip("triton", reason="Triton is not installed")

from eadp.core.triton import facility

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # The interpreter multiplies what the kernel masks.


def solve(batch, **options):
    options = {"symmetric": True, **options}
    return facility.solve(batch.matrices, batch.weights, batch.sizes, batch.limits, None, batch.most, **options)


def assert_picks_of_numba(batch, found):
    for block, (size, keep) in enumerate(zip(batch.sizes.tolist(), batch.limits.tolist(), strict=True)):
        matrix, weights = batch.matrices[block, :size, :size], batch.weights[block, :size]
        expected = core.facility_location(matrix, weights, keep, backend="numba")
        count = int(found.counts[block])
        assert found.order[block, :count].tolist() == expected.indices.tolist()
        torch.testing.assert_close(found.gains[block, :count], expected.gains, atol=1e-12, rtol=1e-9)
        assert float(found.full_objective[block]) == pytest.approx(expected.full_objective)
        assert not found.gains[block, count:].any()


@pytest.mark.parametrize("first", range(0, 210, 21))
def test_ragged_batches_have_the_picks_of_numba(first):
    batch = similarities([make_problem(seed, 16) for seed in range(first, first + 21)])
    assert_picks_of_numba(batch, solve(batch))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_precision_of_the_matrix(dtype):
    batch = similarities([make_problem(seed, 20) for seed in range(300, 314)], dtype)
    assert_picks_of_numba(batch, solve(batch))


def test_a_matrix_that_is_not_symmetric():
    batch = similarities([make_problem(seed, 20) for seed in range(400, 410)])
    batch.matrices.mul_(torch.rand(batch.matrices.shape, generator=torch.Generator().manual_seed(0)))
    assert_picks_of_numba(batch, solve(batch, symmetric=False))


def test_blocks_that_are_walked_in_chunks(monkeypatch):
    monkeypatch.setattr(facility, "CHUNK", 16)
    batch = similarities([make_problem(seed, 40) for seed in range(500, 507)])
    assert_picks_of_numba(batch, solve(batch))


def test_gains_are_computed_again_before_rounding_errors_matter():
    """With gains that fall by twelve orders of magnitude, and updates only."""
    weights = torch.logspace(0, -12, 40, dtype=torch.float64)
    found = core.facility_location(torch.eye(40), weights, 40, backend="triton")
    assert found.indices.tolist() == list(range(40))
    torch.testing.assert_close(found.gains, weights, atol=0, rtol=1e-12)


@pytest.mark.parametrize("target", [0.5, 0.9, 0.999, 1.0])
def test_a_coverage_target_keeps_as_many_tokens_as_numba(target):
    for seed in range(600, 607):
        problem = make_problem(seed, 20)
        similarity = core.token_similarity(problem.features)
        both = [
            core.facility_location(similarity, problem.weights, coverage=target, backend=backend)
            for backend in ("numba", "triton")
        ]
        assert both[0].indices.tolist() == both[1].indices.tolist()
        assert both[0].coverage == pytest.approx(both[1].coverage)
        assert both[0].bound == pytest.approx(both[1].bound)


def test_invalid_input_is_rejected():
    similarity, weights = torch.full((4, 4), 0.5), torch.ones(4)
    for arguments, message in [
        ((similarity.index_fill(0, torch.tensor([1]), float("nan")), weights), r"similarity\[1, 0\] is nan"),
        ((similarity.index_fill(1, torch.tensor([2]), -0.25), weights), r"similarity\[0, 2\] is -0.25"),
        ((similarity, torch.tensor([1.0, -1, 0, 0])), r"weights\[1\] is -1"),
        ((similarity, torch.tensor([1.0, float("inf"), 0, 0])), r"weights\[1\] is inf"),
        ((similarity, 0 * weights), "all 0"),
        ((0 * similarity, weights), "no token represents anything"),
    ]:
        with pytest.raises(ValueError, match=message):
            core.facility_location(*arguments, 2, backend="triton")


def test_an_invalid_block_does_not_disturb_the_others():
    problems = [make_problem(seed, 12) for seed in range(700, 704)]
    batch = similarities(problems)
    expected = solve(batch)
    batch.matrices[2, 0, 0] = float("nan")
    found = solve(batch)
    assert found.full_objective.isnan().tolist() == [False, False, True, False]
    for block in (0, 1, 3):
        assert found.order[block].tolist() == expected.order[block].tolist()
