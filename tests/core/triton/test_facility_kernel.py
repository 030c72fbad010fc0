"""Facility location in Triton: the picks of numba, for every kind of input, size, budget and precision."""

import pytest
import torch
from helpers.block_batches import make_problem, similarities

from eadp import core

pytest.importorskip("triton", reason="Triton is not installed")

from eadp.core.triton import facility, launch

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


@pytest.fixture
def spread(monkeypatch):
    """Spread blocks of any size over many programs, with a launch per pick."""
    monkeypatch.setattr(facility, "LARGEST_AT_ONCE", 0)
    monkeypatch.setattr(facility, "MANY_BLOCKS", 1000)
    monkeypatch.setattr(facility, "GAIN_CHUNK", 8)
    monkeypatch.setattr(facility, "CHUNK", 16)


@pytest.mark.parametrize("first", range(800, 842, 21))
def test_large_blocks_are_spread_over_many_programs(first, spread):
    batch = similarities([make_problem(seed, 14) for seed in range(first, first + 21)])
    assert_picks_of_numba(batch, solve(batch))


def test_the_last_picks_of_a_large_block_when_gains_had_to_be_summed_often(spread):
    """With gains that fall by twelve orders of magnitude, the launches of single picks do not suffice."""
    weights = torch.logspace(0, -12, 16, dtype=torch.float64)
    found = core.facility_location(torch.eye(16), weights, 16, backend="triton")
    assert found.indices.tolist() == list(range(16))
    torch.testing.assert_close(found.gains, weights, atol=0, rtol=1e-12)


@pytest.mark.parametrize("target", [0.5, 0.999])
def test_a_coverage_target_on_a_large_block(target, spread):
    for seed in range(900, 904):
        problem = make_problem(seed, 20)
        similarity = core.token_similarity(problem.features)
        both = [
            core.facility_location(similarity, problem.weights, coverage=target, backend=backend)
            for backend in ("numba", "triton")
        ]
        assert both[0].indices.tolist() == both[1].indices.tolist()
        assert both[0].bound == pytest.approx(both[1].bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_compensated_sums_of_float32_make_the_same_picks(dtype, monkeypatch):
    monkeypatch.setattr(facility, "COLUMNS", 4)
    batch = similarities([make_problem(seed, 14) for seed in range(1000, 1014)], dtype)
    assert_picks_of_numba(batch, solve(batch, compensated=True))


def test_compensated_sums_on_large_blocks(spread, monkeypatch):
    monkeypatch.setattr(facility, "COLUMNS", 4)
    batch = similarities([make_problem(seed, 12) for seed in range(1100, 1107)])
    assert_picks_of_numba(batch, solve(batch, compensated=True))


def test_compensated_sums_keep_what_float32_loses(monkeypatch):
    """Two candidates whose gains differ by a part in 40,000, in sums of 300 terms."""
    n, g = 600, torch.Generator().manual_seed(0)
    weights = torch.rand(n, generator=g)
    matrix = torch.zeros(n, n)
    matrix[0, : n // 2] = 1.0
    matrix[1] = torch.rand(n, generator=g)
    matrix[1, : n // 2] = 0
    matrix[2] = matrix[1]
    matrix[2, n - 1] += 2.5e-5 * float(matrix[1] @ weights) / float(weights[n - 1])
    # The first pick leaves the gains to an update, in which half of the columns rise.
    monkeypatch.setattr(facility, "COLUMNS", 8)
    sizes, limits = torch.tensor([n], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    found = facility.solve(matrix[None], weights[None], sizes, limits, None, 2, symmetric=False, compensated=True)
    expected = core.facility_location(matrix, weights, 2, backend="numba")
    assert found.order[0].tolist() == expected.indices.tolist() == [0, 2]
    torch.testing.assert_close(found.gains[0], expected.gains, atol=0, rtol=1e-12)


def test_float64_is_never_summed_in_float32(monkeypatch):
    batch = similarities([make_problem(seed, 12) for seed in range(1200, 1204)], torch.float64)
    monkeypatch.setattr(facility, "COLUMNS", 4)
    launched, run = [], launch.run
    monkeypatch.setattr(launch, "run", lambda *each: (launched.append(each[3].get("compensated")), run(*each)))
    assert_picks_of_numba(batch, solve(batch, compensated=True))
    assert True not in launched


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


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [2048, 2049])
def test_blocks_of_thousands_of_tokens(tokens):
    """At their real sizes: the largest block that one program solves, and blocks that are spread over many."""
    generator = torch.Generator().manual_seed(tokens)
    similarity = core.token_similarity(torch.randn(tokens, 24, generator=generator))
    weights = torch.rand(tokens, generator=generator)
    there = core.facility_location(similarity, weights, 4, symmetric=True, backend="triton")
    here = core.facility_location(similarity, weights, 4, symmetric=True, backend="numba")
    assert there.indices.tolist() == here.indices.tolist()
    torch.testing.assert_close(there.gains, here.gains)


@pytest.mark.slow
def test_a_dpp_and_max_min_of_thousands_of_tokens():
    cosine = core.token_cosine(torch.randn(2049, 24, generator=torch.Generator().manual_seed(0)))
    for solve_block, matrix in ((core.dpp, cosine), (core.max_min, 1 - cosine)):
        there, here = (solve_block(matrix, 4, backend=backend) for backend in ("triton", "numba"))
        assert there.indices.tolist() == here.indices.tolist()
        torch.testing.assert_close(there.gains, here.gains)
