"""Facility location: picks, the bound on the optimum, coverage targets, and agreement of all solvers."""

import itertools

import numpy as np
import pytest
import torch
from helpers import oracle
from hypothesis import given
from hypothesis import strategies as st

from eadp import core
from eadp.core.similarity import LazySimilarity
from eadp.measure.op_counts import count_operations

SOLVERS = ["numba", "torch"]


def features(n, seed, d=16, clusters=5):
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(clusters, d, generator=g)
    return centres[torch.randint(clusters, (n,), generator=g)] * 2 + torch.randn(n, d, generator=g)


def problem(n, seed):
    g = torch.Generator().manual_seed(seed + 1000)
    return core.token_similarity(features(n, seed)), torch.rand(n, generator=g) ** 2


@pytest.mark.parametrize("backend", SOLVERS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 2), (17, 16), (40, 40), (96, 12), (200, 150)])
def test_picks_and_gains_equal_those_of_the_float64_oracle(backend, n, k):
    for seed in range(4):
        sim, w = problem(n, seed)
        found = core.facility_location(sim, w, k, backend=backend)
        order, gains = oracle.facility_location(sim, w, k)
        assert found.indices.tolist() == order
        np.testing.assert_allclose(found.gains, gains, atol=1e-12)


def test_lazy_rows_pick_the_same_tokens_as_the_matrix():
    for seed in range(4):
        f = features(150, seed)
        w = problem(150, seed)[1]
        dense = core.facility_location(core.token_similarity(f), w, 60)
        lazy = core.facility_location(LazySimilarity.from_features(f), w, 60)
        assert lazy.indices.tolist() == dense.indices.tolist()
        assert lazy.coverage == pytest.approx(dense.coverage, abs=1e-6)
        assert lazy.coverage <= lazy.bound <= 1


@pytest.mark.parametrize("backend", [*SOLVERS, "rows"])
def test_equal_tokens_tie_and_the_lowest_index_wins(backend):
    f = torch.eye(6, 8).repeat(5, 1)
    sim = LazySimilarity.from_features(f) if backend == "rows" else core.token_similarity(f)
    found = core.facility_location(sim, torch.ones(30), 30, backend=backend)
    assert found.indices.tolist() == list(range(30))
    assert (found.gains[6:] == 0).all()


def test_rows_of_an_asymmetric_matrix_cover_its_columns():
    sim = torch.rand(50, 50, generator=torch.Generator().manual_seed(3))
    w = torch.rand(50, generator=torch.Generator().manual_seed(4))
    order, _ = oracle.facility_location(sim, w, 20)
    for backend in SOLVERS:
        assert core.facility_location(sim, w, 20, backend=backend).indices.tolist() == order


@given(n=st.integers(2, 30), seed=st.integers(0, 10_000), data=st.data())
def test_the_objective_is_monotone_and_submodular(n, seed, data):
    sim, w = (x.double().numpy() for x in problem(n, seed))
    small = data.draw(st.sets(st.integers(0, n - 1), max_size=n - 1))
    large = small | data.draw(st.sets(st.integers(0, n - 1), max_size=n - 1))
    u = data.draw(st.integers(0, n - 1))

    def gain(chosen):
        return oracle.objective(sim, w, chosen | {u}) - oracle.objective(sim, w, chosen)

    assert oracle.objective(sim, w, small) <= oracle.objective(sim, w, large) + 1e-12
    assert gain(small) >= gain(large) - 1e-12


@given(n=st.integers(2, 60), seed=st.integers(0, 10_000), data=st.data())
def test_budget_is_exact_coverage_grows_and_gains_fall(n, seed, data):
    k = data.draw(st.integers(1, n))
    sim, w = problem(n, seed)
    found = core.facility_location(sim, w, k)
    assert len(set(found.indices.tolist())) == k
    assert (found.gains.diff() <= 1e-12).all()
    assert found.coverage == pytest.approx(oracle.coverage(sim, w, found.indices.tolist()), abs=1e-5)
    assert core.facility_location(sim, w, min(n, k + 1)).coverage >= found.coverage
    assert core.facility_location(sim, w, 1).coverage == 0
    assert core.facility_location(sim, w, n).coverage == pytest.approx(1)


@given(n=st.integers(2, 40), seed=st.integers(0, 10_000))
def test_permuting_tokens_permutes_picks(n, seed):
    sim, w = problem(n, seed)
    perm = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    straight = core.facility_location(sim, w, max(1, n // 2)).indices
    shuffled = core.facility_location(sim[perm][:, perm], w[perm], max(1, n // 2)).indices
    assert perm[shuffled].tolist() == straight.tolist()


@pytest.mark.parametrize("backend", [*SOLVERS, "rows"])
@pytest.mark.parametrize("seed", range(8))
def test_the_bound_holds_against_every_subset(backend, seed):
    f = features(11, seed)
    sim, w = core.token_similarity(f), problem(11, seed)[1]
    for k in (1, 2, 4, 6):
        found = core.facility_location(
            LazySimilarity.from_features(f) if backend == "rows" else sim, w, k, backend=backend
        )
        best = max(oracle.coverage(sim, w, c) for c in itertools.combinations(range(11), k))
        assert found.coverage <= best + 1e-6
        assert best <= found.bound + 1e-6
        assert found.coverage >= (1 - (1 - 1 / k) ** (k - 1)) * found.bound - 1e-4


def test_the_bound_is_tighter_than_the_general_guarantee():
    sim, w = problem(200, 0)
    found = core.facility_location(sim, w, 40)
    assert found.coverage / found.bound > 0.9


@pytest.mark.parametrize("backend", [*SOLVERS, "rows"])
def test_one_token_covers_an_image_of_equal_tokens(backend):
    f = torch.ones(9, 4)
    sim = LazySimilarity.from_features(f) if backend == "rows" else core.token_similarity(f)
    assert core.facility_location(sim, torch.ones(9), 3, backend=backend).coverage == 1
    found = core.facility_location(sim, torch.ones(9), coverage=1.0, backend=backend)
    assert (found.indices.tolist(), found.coverage, found.bound) == ([0], 1, 1)


def test_coverage_does_not_depend_on_an_offset_of_the_similarities():
    """Similarities in [0.5, 1] cover as much as the same ones stretched to [0, 1]."""
    sim, w = problem(60, 1)
    low = sim.min()
    stretched = core.facility_location((sim - low) / (1 - low), w, 12)
    found = core.facility_location(sim, w, 12)
    assert found.indices.tolist() == stretched.indices.tolist()
    assert found.coverage == pytest.approx(stretched.coverage, abs=1e-5)


@pytest.mark.parametrize("backend", [*SOLVERS, "rows"])
@pytest.mark.parametrize("target", [0.5, 0.9, 0.99, 1.0])
def test_a_coverage_target_keeps_the_fewest_picks_that_reach_it(backend, target):
    f = features(120, 5)
    w = problem(120, 5)[1]
    sim = LazySimilarity.from_features(f) if backend == "rows" else core.token_similarity(f)
    found = core.facility_location(sim, w, coverage=target, backend=backend)
    assert found.coverage >= target - 1e-5  # a target counts as reached up to rounding
    if len(found.indices) > 1:
        one_fewer = core.facility_location(sim, w, len(found.indices) - 1, backend=backend)
        assert one_fewer.coverage < target
        assert one_fewer.indices.tolist() == found.indices[:-1].tolist()


@pytest.mark.parametrize("backend", SOLVERS)
def test_keep_limits_a_coverage_target(backend):
    sim, w = problem(120, 5)
    assert len(core.facility_location(sim, w, 3, 0.99, backend=backend).indices) == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("backend", SOLVERS)
def test_every_dtype(dtype, backend):
    sim, w = problem(64, 2)
    sim, w = sim.to(dtype), w.to(dtype)
    found = core.facility_location(sim, w, 20, backend=backend)
    assert found.indices.tolist() == oracle.facility_location(sim.double(), w.double(), 20)[0]


SIM, ONES = torch.full((4, 4), 0.5), torch.ones(4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((SIM, ONES, 0), "at least 1.*got 0"),
        ((SIM, ONES, 5), "at most the 4 tokens.*got 5"),
        ((SIM, ONES, None, 0.0), r"coverage must lie in \(0, 1\], got 0"),
        ((SIM, ONES, None, 1.5), "coverage.*1.5"),
        ((SIM, ONES), "give keep=.*coverage="),
        ((SIM[:3], ONES, 2), "square"),
        ((SIM, ONES[:3], 2), "4 tokens.*3"),
        ((SIM.index_fill(0, torch.tensor([1]), float("nan")), ONES, 2), r"similarity\[1, 0\] is nan"),
        ((SIM.index_fill(1, torch.tensor([2]), -0.25), ONES, 2), r"similarity\[0, 2\] is -0.25"),
        ((SIM, torch.tensor([1.0, -1, 0, 0]), 2), r"weights\[1\] is -1"),
        ((SIM, torch.tensor([1.0, float("inf"), 0, 0]), 2), r"weights\[1\] is inf"),
        ((SIM, 0 * ONES, 2), "all 0"),
    ],
)
@pytest.mark.parametrize("backend", SOLVERS)
def test_invalid_input_is_rejected(arguments, message, backend):
    with pytest.raises(ValueError, match=message):
        core.facility_location(*arguments, backend=backend)


def test_unknown_and_unsuitable_backends_are_rejected():
    with pytest.raises(ValueError, match="'fast'; known: auto, numba, torch, triton, rows"):
        core.facility_location(SIM, ONES, 2, backend="fast")
    with pytest.raises(ValueError, match="'rows' takes a LazySimilarity"):
        core.facility_location(SIM, ONES, 2, backend="rows")
    with pytest.raises(TypeError, match="whole number"):
        core.facility_location(SIM, ONES, 2.5)


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_torch_solver_needs_at_most_as_much_memory_again_as_its_matrix(symmetric):
    n = 1024
    features = torch.randn(n, 16, generator=torch.Generator().manual_seed(0))
    similarity = core.token_similarity(features)
    found = count_operations(
        lambda: core.facility_location(similarity, torch.ones(n), 32, symmetric=symmetric, backend="torch")
    )
    assert similarity.nbytes / 100 < found.peak_bytes <= 1.05 * similarity.nbytes
