"""Tie rules: where rounding could decide a pick, the lowest index wins, on every CPU, thread count and backend."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers import TESTS, oracle
from helpers.tie_scenes import (
    SCENES,
    SOLVERS,
    K,
    N,
    duplicated,
    perturbed,
    picks_on_this_machine,
    random_normal,
    random_weights,
    solve,
)
from hypothesis import given
from hypothesis import strategies as st

from eadp import core
from eadp.core.similarity import LazySimilarity


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_picks_do_not_depend_on_the_last_bit(scene, solver):
    features, weights = SCENES[scene]()
    expected = solve(solver, features.double(), weights.double(), K).indices.tolist()
    shuffled = torch.randperm(features.shape[1], generator=torch.Generator().manual_seed(9))
    assert solve(solver, features, weights, K).indices.tolist() == expected
    assert solve(solver, features[:, shuffled], weights, K).indices.tolist() == expected
    for seed in range(4):
        assert solve(solver, perturbed(features, seed), perturbed(weights, seed + 10), K).indices.tolist() == expected


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("selection", ["dpp", "max-min", "cover"])
def test_all_backends_pick_the_same_tokens(scene, selection):
    features, weights = SCENES[scene]()
    picks = [solve(each, features, weights, K).indices.tolist() for each in SOLVERS if each.startswith(selection)]
    assert all(each == picks[0] for each in picks)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_other_cpu_instructions_and_thread_counts_pick_the_same_tokens(threads):
    """A separate process uses other CPU kernels: PyTorch's without vector instructions, MKL's most compatible ones."""
    code = (
        "import json; from helpers.tie_scenes import picks_on_this_machine; print(json.dumps(picks_on_this_machine()))"
    )
    other = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": str(threads)}
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    env = {**os.environ, "PYTHONPATH": path, **other}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == picks_on_this_machine()


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [3, 32])
def test_dpp_picks_beyond_the_kernel_rank_follow_the_index(backend, dtype, rank):
    features, weights = 0.1 * random_normal(64, rank) + 1, random_weights(64)
    cosine = 2 * core.token_similarity(features).to(dtype) - 1  # the rounding errors of float32 cosines have full rank
    found = core.dpp(weights[:, None] * cosine * weights, rank + 20, backend=backend)
    first = found.indices[:rank].tolist()
    assert (found.gains[:rank] > 1e-5).all()
    assert found.indices[rank:].tolist() == [i for i in range(64) if i not in first][:20]
    assert (found.gains[rank:] == 0).all()


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_float64_cosines_distinguish_tokens_that_are_almost_explained(backend):
    features, weights = random_normal(150, 64, seed=1) * 0.8 ** torch.arange(64).clamp_max(20), random_weights(150)
    picks = solve(f"dpp {backend}", features.double(), weights, 60).indices.tolist()
    for seed in range(8):
        assert solve(f"dpp {backend}", perturbed(features, seed), weights, 60).indices.tolist() == picks


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("n", [N, 150])
def test_equal_tokens_are_picked_in_the_order_of_their_indices(solver, n):
    found = solve(solver, perturbed(random_normal(1, 24).repeat(n, 1), 0), torch.ones(n), n - 1)
    assert found.indices.tolist() == list(range(n - 1))
    assert (found.gains[1:] == 0).all()


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("shared_offset", [0, 30])
@pytest.mark.parametrize("seed", range(3))
def test_copies_are_picked_only_when_nothing_else_is_left(solver, shared_offset, seed):
    features = random_normal(N // 2, 24, seed=seed) + shared_offset * random_normal(24, seed=seed + 50)
    features, weights = duplicated(features, random_weights(N // 2))
    found = solve(solver, perturbed(features, seed), weights, K)
    assert sorted(found.indices[: N // 2].tolist()) == list(range(N // 2))
    assert found.indices[N // 2 :].tolist() == list(range(N // 2, K))
    assert (found.gains[1 : N // 2] > 0).all()
    assert (found.gains[N // 2 :] == 0).all()


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("seed", range(3))
def test_copies_also_tie_in_float32_matrices(backend, seed):
    features, weights = duplicated(
        random_normal(N // 2, 24, seed=seed) + 20 * random_normal(24, seed=seed + 50), random_weights(N // 2)
    )
    similarity = core.token_similarity(perturbed(features, seed))
    apart = core.max_min(2 * (1 - similarity), K, backend=backend).indices
    kernel = core.dpp(weights[:, None] * (2 * similarity - 1) * weights, K, backend=backend).indices
    for picks in (apart, kernel):
        assert sorted(picks[: N // 2].tolist()) == list(range(N // 2))
        assert picks[N // 2 :].tolist() == list(range(N // 2, K))


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize(("above", "first"), [(1e-6, 0), (1e-5, 1)])
def test_a_relative_difference_of_1e_5_decides_and_1e_6_does_not(above, first, backend):
    values = torch.tensor([1, 1 + above, 0.5], dtype=torch.float64)
    assert core.dpp(values.diag(), 2, backend=backend).indices.tolist() == [first, 1 - first]
    cover = core.facility_location(torch.eye(3, dtype=torch.float64), values, 2, backend=backend)
    assert cover.indices.tolist() == [first, 1 - first]
    apart = 1 - torch.eye(4, dtype=torch.float64)
    apart[3, :2] = apart[:2, 3] = values[:2]
    apart[3, 2] = apart[2, 3] = 3
    apart[2, :2] = apart[:2, 2] = 2
    apart[0, 1] = apart[1, 0] = 0.5
    assert core.max_min(apart, 3, backend=backend).indices.tolist() == [2, 3, first]


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_rounding_is_relative_to_the_variance_of_each_token(backend):
    """A token of low relevance still counts: the noise level is a share of its own variance, not of the largest."""
    small = 1e-4
    weights = torch.tensor([1.0, 1.0, small, 2 * small])
    features = torch.eye(4)[[0, 0, 1, 2]]
    cosine = core.token_cosine(features)
    found = core.dpp(weights[:, None] * cosine * weights, 4, backend=backend)
    assert found.indices.tolist() == [0, 3, 2, 1]
    assert found.gains.tolist() == pytest.approx([1, 4 * small**2, small**2, 0])


def test_rounding_of_distances_is_relative_to_their_scale():
    points = torch.tensor([0.0, 1, 3, 7]) * 1e-7
    distance = (points[:, None] - points).abs()
    assert core.max_min(distance, 4).indices.tolist() == [0, 1, 2, 3]
    assert core.max_min(distance, 4, scale=7e-7).indices.tolist() == [3, 0, 2, 1]
    with pytest.raises(ValueError, match="scale must be greater than 0, got 0"):
        core.max_min(distance, 4, scale=0)


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("seed", range(6))
def test_incremental_gains_stay_exact_with_copies_zero_weights_and_tiny_gains(backend, seed):
    g = torch.Generator().manual_seed(seed)
    features = random_normal(60, 16, seed=seed)[torch.randint(60, (180,), generator=g)]
    features[::7] += 1e-4 * torch.randn(26, 16, generator=g)
    weights = torch.rand(180, generator=g) ** 8 * (torch.rand(180, generator=g) > 0.5)
    similarity = core.token_similarity(features)
    order, gains = oracle.facility_location_with_ties(similarity, weights, 179)
    found = core.facility_location(similarity, weights, 179, backend=backend)
    assert found.indices.tolist() == order
    np.testing.assert_allclose(found.gains, gains, atol=1e-12)


@given(distinct=st.integers(1, 12), n=st.integers(2, 30), seed=st.integers(0, 10_000), data=st.data())
def test_repeated_tokens_are_picked_after_all_distinct_ones(distinct, n, seed, data):
    g = torch.Generator().manual_seed(seed)
    which = torch.randint(distinct, (n,), generator=g)
    keep = data.draw(st.integers(1, n))
    features, weights = random_normal(distinct, 16, seed=seed)[which], random_weights(distinct, seed)[which]
    firsts = [i for i in range(n) if which[i] not in which[:i]]
    for solver in SOLVERS:
        found = solve(solver, perturbed(features, seed), weights, keep)
        useful = min(keep, len(firsts))
        assert set(found.indices[:useful].tolist()) <= set(firsts)
        assert found.indices[useful:].tolist() == [i for i in range(n) if i not in firsts][: keep - useful]
        assert (found.gains[useful:] == 0).all()


@pytest.mark.parametrize("backend", ["numba", "torch", "rows"])
def test_full_coverage_is_reached_when_nothing_is_left_to_gain(backend):
    features, weights = duplicated(random_normal(8, 24), random_weights(8))
    features = perturbed(features, 1)
    similarity = LazySimilarity.from_features(features) if backend == "rows" else core.token_similarity(features)
    found = core.facility_location(similarity, weights, coverage=1.0, backend=backend)
    assert sorted(found.indices.tolist()) == list(range(8))
    assert found.coverage == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_a_similarity_below_the_rounding_of_the_largest_adds_nothing(backend):
    similarity, weights = torch.tensor([1, 1e-7]).diag(), torch.tensor([1.0, 100])
    assert core.facility_location(similarity, weights, coverage=1.0, backend=backend).indices.tolist() == [0]
    assert core.facility_location(similarity, weights, 2, backend=backend).gains.tolist() == [1, 0]


@pytest.mark.parametrize("backend", ["numba", "torch", "rows"])
@pytest.mark.parametrize("seed", range(4))
def test_a_coverage_reached_up_to_rounding_counts_as_reached(backend, seed):
    """Eight orthogonal tokens: a kept one is covered by 1, any other by 0.5. Four take three of seven steps."""
    orthogonal = perturbed(torch.linalg.qr(random_normal(8, 8).double()).Q.float(), seed)
    similarity = LazySimilarity.from_features(orthogonal) if backend == "rows" else core.token_similarity(orthogonal)
    found = core.facility_location(similarity, torch.ones(8), coverage=3 / 7, backend=backend)
    assert found.indices.tolist() == [0, 1, 2, 3]
    assert found.coverage == pytest.approx(3 / 7, abs=1e-5)
    both = core.facility_location_by_coverage(
        torch.cat([orthogonal, orthogonal]), torch.ones(16), [slice(0, 8), slice(8, 16)], 3 / 7
    )
    assert both.indices.tolist() == [0, 8, 1, 9, 2, 10, 3, 11]


@pytest.mark.parametrize("seed", range(3))
def test_equal_frames_are_picked_from_in_turn(seed):
    frame, weights = random_normal(12, 24), random_weights(12)
    features = perturbed(frame.repeat(3, 1), seed)
    blocks = [slice(0, 12), slice(12, 24), slice(24, 36)]
    found = core.facility_location_by_coverage(features, weights.repeat(3), blocks, 0.8)
    alone = core.facility_location(core.token_similarity(frame), weights, 12).indices.tolist()
    turns = [index + block.start for index in alone for block in blocks]
    assert found.indices.tolist() == turns[: len(found.indices)]
    assert 3 < len(found.indices) < 36
    everything = core.facility_location_by_coverage(
        torch.cat([features, features]), weights.repeat(6), [slice(0, 36), slice(36, 72)], 1.0
    )
    assert sorted(everything.indices.tolist()) == [*range(12), *range(36, 48)]


def test_only_exactly_equal_scores_rank_by_index():
    up = torch.nextafter(torch.tensor(0.5), torch.tensor(1.0)).item()
    assert core.rank_descending(torch.tensor([0.5, 0.7, 0.5, up, 0.7])).tolist() == [1, 4, 3, 0, 2]
