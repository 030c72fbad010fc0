"""Facility location over a clip: against a dense oracle, its bound, quotas, ties, and the least number per frame."""

import itertools

import numpy as np
import pytest
import torch
from helpers import oracle
from helpers.tie_scenes import perturbed, random_normal, random_weights
from hypothesis import given
from hypothesis import strategies as st

from eadp import core
from eadp.core.facility import coverage_of

FRAMES = 6


def clip(seed, n=9, d=12, drift=0.5, frames=FRAMES):
    """Return a clip whose frames drift away from the first one, and its weights."""
    g = torch.Generator().manual_seed(seed)
    steps = torch.randn(frames, n, d, generator=g) * drift
    steps[0] = torch.randn(n, d, generator=g)
    return steps.cumsum(0).flatten(0, 1), torch.rand(frames * n, generator=g) ** 2


def dense(features, reach, decay=0.0, frames=FRAMES):
    """The whole matrix by its definition: the similarity times the kernel of the distance in time."""
    frame = np.arange(len(features)) // (len(features) // frames)
    apart = np.abs(frame[:, None] - frame)
    kernel = np.where(apart <= reach, (1 - decay) ** apart, 0)
    return oracle.similarity(features) * kernel


def same_picks(found, expected):
    """Equal picks as long as something is left to gain."""
    order, gains = expected
    useful = sum(gain > 1e-5 for gain in gains)
    assert found.indices[:useful].tolist() == order[:useful]
    np.testing.assert_allclose(found.gains, gains, atol=1e-4)


@pytest.mark.parametrize("reach", [1, 2, 5, 9])
@pytest.mark.parametrize("keep", [1, 10, 40])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_picks_and_gains_equal_those_of_the_dense_oracle(reach, keep, decay):
    for seed in range(4):
        features, weights = clip(seed)
        found = core.facility_location_over_time(features, weights, FRAMES, reach, keep, decay=decay)
        same_picks(found, oracle.facility_location(dense(features, reach, decay), weights, keep))


@given(frames=st.integers(1, 6), n=st.integers(1, 8), reach=st.integers(1, 4), seed=st.integers(0, 999), data=st.data())
def test_any_shape_equals_the_oracle(frames, n, reach, seed, data):
    keep = data.draw(st.integers(1, frames * n))
    features, weights = clip(seed, n=n, frames=frames)
    found = core.facility_location_over_time(features, weights, frames, reach, keep)
    assert len(set(found.indices.tolist())) == keep
    same_picks(found, oracle.facility_location(dense(features, reach, frames=frames), weights, keep))


def test_gains_stay_exact_over_many_picks():
    features, weights = clip(3, n=60, d=24, drift=0.3)
    weights = weights**6 * (random_weights(360) > 0.3)
    order, gains = oracle.facility_location(dense(features, 2), weights, 300)
    found = core.facility_location_over_time(features, weights, FRAMES, 2, 300)
    np.testing.assert_allclose(found.gains, gains, atol=1e-5)
    assert found.indices[:100].tolist() == order[:100]


def coverage(features, weights, reach, chosen):
    """The coverage by its definition: 0 is what the best token of each frame represents within its frame."""
    full = weights.sum().item()
    parts = zip(features.chunk(FRAMES), weights.double().numpy().reshape(FRAMES, -1), strict=True)
    single = sum(max(oracle.similarity(part) @ w) for part, w in parts)
    return coverage_of(oracle.objective(dense(features, reach), weights.double().numpy(), list(chosen)), single, full)


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_holds_against_every_subset(seed):
    features, weights = clip(seed, n=2, drift=1.0)
    for keep, per_frame in ((4, 0), (7, 0), (9, 1)):
        found = core.facility_location_over_time(features, weights, FRAMES, 2, keep, per_frame=per_frame)
        best = max(coverage(features, weights, 2, each) for each in itertools.combinations(range(12), keep))
        assert found.coverage == pytest.approx(coverage(features, weights, 2, found.indices.tolist()), abs=1e-5)
        assert found.coverage - 1e-5 <= best <= found.bound + 1e-5


@pytest.mark.parametrize("target", [0.3, 0.8, 1.0])
def test_a_coverage_keeps_the_fewest_picks_that_reach_it(target):
    features, weights = clip(1)
    found = core.facility_location_over_time(features, weights, FRAMES, 2, coverage=target)
    assert found.coverage >= target - 1e-5
    one_fewer = core.facility_location_over_time(features, weights, FRAMES, 2, len(found.indices) - 1)
    assert one_fewer.coverage < target
    assert one_fewer.indices.tolist() == found.indices[:-1].tolist()
    capped = core.facility_location_over_time(features, weights, FRAMES, 2, 5, target)
    assert capped.indices.tolist() == found.indices[:5].tolist()


def quotas(found, n=9):
    return np.bincount(found.indices.numpy() // n, minlength=FRAMES).tolist()


@pytest.mark.parametrize("keep", [12, 14, 20])
def test_every_frame_gets_its_least_number_and_the_budget_is_exact(keep):
    features, weights = clip(0)
    weights[:45] *= 1e-4
    free = core.facility_location_over_time(features, weights, FRAMES, 2, keep)
    found = core.facility_location_over_time(features, weights, FRAMES, 2, keep, per_frame=2)
    assert min(quotas(free)) < 2 <= min(quotas(found))
    assert len(set(found.indices.tolist())) == keep
    assert found.coverage <= free.coverage + 1e-6


def test_frames_without_weight_get_their_least_number_too():
    features, weights = clip(0)
    weights[9:] = 0
    found = core.facility_location_over_time(features, weights, FRAMES, 1, 14, per_frame=1)
    assert (sum(quotas(found)), min(quotas(found)), quotas(found)[2:]) == (14, 1, [1, 1, 1, 1])
    reached = core.facility_location_over_time(features, weights, FRAMES, 1, coverage=0.5, per_frame=1)
    assert quotas(reached)[2:] == [1, 1, 1, 1]
    assert reached.coverage >= 0.5


@pytest.mark.parametrize("decay", [0.0, 0.02])
@pytest.mark.parametrize("seed", range(4))
def test_rounding_decides_nothing_in_a_still_clip(seed, decay):
    frame, weights = random_normal(9, 24), random_weights(9)
    features, weights = frame.repeat(FRAMES, 1), weights.repeat(FRAMES)
    settings = {"frames": FRAMES, "reach": 2, "keep": 30, "decay": decay}
    expected = core.facility_location_over_time(features.double(), weights, **settings).indices.tolist()
    found = core.facility_location_over_time(perturbed(features, seed), weights, **settings)
    assert found.indices.tolist() == expected


def test_a_clip_of_equal_tokens_is_picked_by_index_once_nothing_is_left_to_gain():
    features, weights = random_normal(1, 24).repeat(FRAMES * 9, 1), torch.ones(FRAMES * 9)
    found = core.facility_location_over_time(features, weights, FRAMES, 2, 40)
    assert found.indices[:2].tolist() == [18, 27]  # Frame 2 stands for the first five frames, frame 3 for the last.
    assert found.indices[2:].tolist() == [u for u in range(54) if u not in (18, 27)][:38]
    assert (found.gains[2:] == 0).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep": 11, "per_frame": 2}, "2 tokens in each of 6 frames do not fit: the budget is 11"),
        ({"keep": 54, "per_frame": 10}, "a frame has 9"),
        ({"keep": 55}, "at most the 54 tokens"),
        ({"keep": 9, "decay": 1.0}, r"decay must lie in \[0, 1\), got 1"),
        ({"coverage": 1.5}, r"coverage must lie in \(0, 1\]"),
        ({}, "give keep="),
        ({"keep": 9, "matrix_limit": 1000}, "more than matrix_limit=1000: set a smaller time"),
        ({"keep": 9, "frames": 5}, "54 tokens in 5 frames"),
    ],
)
def test_invalid_input_is_rejected(settings, message):
    features, weights = clip(0)
    with pytest.raises(ValueError, match=message):
        core.facility_location_over_time(features, weights, settings.pop("frames", FRAMES), 2, **settings)
