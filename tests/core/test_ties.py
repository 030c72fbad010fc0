"""Picks that rounding could decide: the lowest index instead, on every CPU, thread count, batch and backend."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers import TESTS, oracle
from helpers.tie_scenes import SCENES, SOLVERS, K, N, copies, moved, normal, scenes_on_this_machine, solve, weights_of
from hypothesis import given
from hypothesis import strategies as st

from eadp import core
from eadp.core.similarity import CosineRows


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_picks_do_not_hang_on_the_last_bit(scene, solver):
    features, weights = SCENES[scene]()
    picks = solve(solver, features.double(), weights.double(), K).indices.tolist()
    shuffled = torch.randperm(features.shape[1], generator=torch.Generator().manual_seed(9))
    assert solve(solver, features, weights, K).indices.tolist() == picks
    assert solve(solver, features[:, shuffled], weights, K).indices.tolist() == picks
    for seed in range(4):
        assert solve(solver, moved(features, seed), moved(weights, seed + 10), K).indices.tolist() == picks


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("selection", ["dpp", "max-min", "cover"])
def test_every_backend_picks_the_same(scene, selection):
    features, weights = SCENES[scene]()
    picks = [solve(each, features, weights, K).indices.tolist() for each in SOLVERS if each.startswith(selection)]
    assert all(each == picks[0] for each in picks)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_other_instructions_and_threads_pick_the_same(threads):
    """Kernels for another CPU, in a process of their own: PyTorch's without vectors, MKL's for any machine."""
    code = "import json; from helpers.tie_scenes import scenes_on_this_machine as found; print(json.dumps(found()))"
    other = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": str(threads)}
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, **other}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == scenes_on_this_machine()


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [3, 32])
def test_beyond_the_rank_of_a_kernel_the_lowest_indices_follow(backend, dtype, rank):
    features, weights = 0.1 * normal(64, rank) + 1, weights_of(64)
    cosine = 2 * core.token_similarity(features).to(dtype) - 1  # float32 cosines: their noise has full rank
    found = core.dpp(weights[:, None] * cosine * weights, rank + 20, backend=backend)
    first = found.indices[:rank].tolist()
    assert (found.gains[:rank] > 1e-5).all()
    assert found.indices[rank:].tolist() == [i for i in range(64) if i not in first][:20]
    assert (found.gains[rank:] == 0).all()


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_float64_cosines_tell_tokens_apart_that_are_almost_explained(backend):
    features, weights = normal(150, 64, seed=1) * 0.8 ** torch.arange(64).clamp_max(20), weights_of(150)
    picks = solve(f"dpp {backend}", features.double(), weights, 60).indices.tolist()
    for seed in range(8):
        assert solve(f"dpp {backend}", moved(features, seed), weights, 60).indices.tolist() == picks


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("n", [N, 150])
def test_equal_tokens_are_kept_from_the_first_on(solver, n):
    found = solve(solver, moved(normal(1, 24).repeat(n, 1), 0), torch.ones(n), n - 1)
    assert found.indices.tolist() == list(range(n - 1))
    assert (found.gains[1:] == 0).all()


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("alike", [0, 30])
@pytest.mark.parametrize("seed", range(3))
def test_of_copies_the_first_is_kept_and_the_second_only_when_nothing_else_is_left(solver, alike, seed):
    features = normal(N // 2, 24, seed=seed) + alike * normal(24, seed=seed + 50)
    features, weights = copies(features, weights_of(N // 2))
    found = solve(solver, moved(features, seed), weights, K)
    assert sorted(found.indices[: N // 2].tolist()) == list(range(N // 2))
    assert found.indices[N // 2 :].tolist() == list(range(N // 2, K))
    assert (found.gains[1 : N // 2] > 0).all()
    assert (found.gains[N // 2 :] == 0).all()


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("seed", range(3))
def test_copies_tie_in_matrices_of_float32_too(backend, seed):
    features, weights = copies(normal(N // 2, 24, seed=seed) + 20 * normal(24, seed=seed + 50), weights_of(N // 2))
    similarity = core.token_similarity(moved(features, seed))
    apart = core.max_min(2 * (1 - similarity), K, backend=backend).indices
    kernel = core.dpp(weights[:, None] * (2 * similarity - 1) * weights, K, backend=backend).indices
    for picks in (apart, kernel):
        assert sorted(picks[: N // 2].tolist()) == list(range(N // 2))
        assert picks[N // 2 :].tolist() == list(range(N // 2, K))


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize(("above", "first"), [(1e-6, 0), (1e-5, 1)])
def test_a_hundred_thousandth_decides_and_a_millionth_does_not(above, first, backend):
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
def test_a_token_of_little_relevance_still_counts(backend):
    """What rounding can make of a variance is a share of that token's own, not of the largest."""
    small = 1e-4
    weights = torch.tensor([1.0, 1.0, small, 2 * small])
    features = torch.eye(4)[[0, 0, 1, 2]]
    cosine = core.token_cosine(features)
    found = core.dpp(weights[:, None] * cosine * weights, 4, backend=backend)
    assert found.indices.tolist() == [0, 3, 2, 1]
    assert found.gains.tolist() == pytest.approx([1, 4 * small**2, small**2, 0])


def test_distances_are_rounded_relative_to_their_scale():
    points = torch.tensor([0.0, 1, 3, 7]) * 1e-7
    distance = (points[:, None] - points).abs()
    assert core.max_min(distance, 4).indices.tolist() == [0, 1, 2, 3]
    assert core.max_min(distance, 4, scale=7e-7).indices.tolist() == [3, 0, 2, 1]
    with pytest.raises(ValueError, match="scale must be greater than 0, got 0"):
        core.max_min(distance, 4, scale=0)


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("seed", range(6))
def test_copies_zero_weights_and_tiny_gains_do_not_mislead_the_gains_that_are_kept_up_to_date(backend, seed):
    g = torch.Generator().manual_seed(seed)
    features = normal(60, 16, seed=seed)[torch.randint(60, (180,), generator=g)]
    features[::7] += 1e-4 * torch.randn(26, 16, generator=g)
    weights = torch.rand(180, generator=g) ** 8 * (torch.rand(180, generator=g) > 0.5)
    similarity = core.token_similarity(features)
    order, gains = oracle.covered_by_the_rules(similarity, weights, 179)
    found = core.facility_location(similarity, weights, 179, backend=backend)
    assert found.indices.tolist() == order
    np.testing.assert_allclose(found.gains, gains, atol=1e-12)


@given(distinct=st.integers(1, 12), n=st.integers(2, 30), seed=st.integers(0, 10_000), data=st.data())
def test_tokens_that_come_several_times(distinct, n, seed, data):
    g = torch.Generator().manual_seed(seed)
    which = torch.randint(distinct, (n,), generator=g)
    keep = data.draw(st.integers(1, n))
    features, weights = normal(distinct, 16, seed=seed)[which], weights_of(distinct, seed)[which]
    firsts = [i for i in range(n) if which[i] not in which[:i]]
    for solver in SOLVERS:
        found = solve(solver, moved(features, seed), weights, keep)
        useful = min(keep, len(firsts))
        assert set(found.indices[:useful].tolist()) <= set(firsts)
        assert found.indices[useful:].tolist() == [i for i in range(n) if i not in firsts][: keep - useful]
        assert (found.gains[useful:] == 0).all()


@pytest.mark.parametrize("backend", ["numba", "torch", "rows"])
def test_a_share_is_reached_when_nothing_is_left_to_gain(backend):
    features, weights = copies(normal(8, 24), weights_of(8))
    features = moved(features, 1)
    similarity = CosineRows.of(features) if backend == "rows" else core.token_similarity(features)
    found = core.facility_location(similarity, weights, coverage=1.0, backend=backend)
    assert sorted(found.indices.tolist()) == list(range(8))
    assert found.coverage == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_what_is_left_may_be_less_than_rounding_of_the_rest(backend):
    similarity, weights = torch.tensor([1, 1e-7]).diag(), torch.tensor([1.0, 100])
    assert core.facility_location(similarity, weights, coverage=1.0, backend=backend).indices.tolist() == [0]
    assert core.facility_location(similarity, weights, 2, backend=backend).gains.tolist() == [1, 0]


@pytest.mark.parametrize("backend", ["numba", "torch", "rows"])
@pytest.mark.parametrize("seed", range(4))
def test_a_share_that_is_just_reached_is_reached(backend, seed):
    """Eight directions at right angles: the kept ones count 1, the others 0.5."""
    right = moved(torch.linalg.qr(normal(8, 8).double()).Q.float(), seed)
    similarity = CosineRows.of(right) if backend == "rows" else core.token_similarity(right)
    found = core.facility_location(similarity, torch.ones(8), coverage=0.75, backend=backend)
    assert found.indices.tolist() == [0, 1, 2, 3]
    assert found.coverage == pytest.approx(0.75, abs=1e-6)
    both = core.cover_by_share(torch.cat([right, right]), torch.ones(16), [slice(0, 8), slice(8, 16)], 0.75)
    assert both.indices.tolist() == [0, 8, 1, 9, 2, 10, 3, 11]


@pytest.mark.parametrize("seed", range(3))
def test_frames_that_are_equal_take_turns(seed):
    frame, weights = normal(12, 24), weights_of(12)
    features = moved(frame.repeat(3, 1), seed)
    blocks = [slice(0, 12), slice(12, 24), slice(24, 36)]
    found = core.cover_by_share(features, weights.repeat(3), blocks, 0.8)
    alone = core.facility_location(core.token_similarity(frame), weights, 12).indices.tolist()
    turns = [index + block.start for index in alone for block in blocks]
    assert found.indices.tolist() == turns[: len(found.indices)]
    assert 3 < len(found.indices) < 36
    everything = core.cover_by_share(
        torch.cat([features, features]), weights.repeat(6), [slice(0, 36), slice(36, 72)], 1.0
    )
    assert sorted(everything.indices.tolist()) == [*range(12), *range(36, 48)]


def test_equal_scores_rank_by_index_and_one_rounding_is_a_difference():
    up = torch.nextafter(torch.tensor(0.5), torch.tensor(1.0)).item()
    assert core.ranked(torch.tensor([0.5, 0.7, 0.5, up, 0.7])).tolist() == [1, 4, 3, 0, 2]
