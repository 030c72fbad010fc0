"""Smoothing, polarisation and token similarity."""

import numpy as np
import pytest
import torch
from helpers import oracle
from hypothesis import given
from hypothesis import strategies as st

from eadp import core
from eadp.core.similarity import LazySimilarity


@pytest.mark.parametrize("size", [1, 3, 5, 7])
@pytest.mark.parametrize("grid", [(24, 24), (9, 13), (4, 31)])
def test_smoothing_is_a_gaussian_with_reflected_borders(size, grid):
    score = torch.rand(grid[0] * grid[1], generator=torch.Generator().manual_seed(size))
    np.testing.assert_allclose(core.smooth(score, grid, size), oracle.smooth(score, *grid, size), atol=1e-6)


@given(rows=st.integers(1, 8), columns=st.integers(1, 8), size=st.sampled_from([3, 5, 7]))
def test_smoothing_works_on_maps_smaller_than_its_kernel(rows, columns, size):
    flat = core.smooth(torch.full((rows * columns,), 0.7), (rows, columns), size)
    torch.testing.assert_close(flat, torch.full_like(flat, 0.7))
    score = torch.rand(rows * columns, generator=torch.Generator().manual_seed(rows * 8 + columns))
    np.testing.assert_allclose(
        core.smooth(score, (rows, columns), size), oracle.smooth(score, rows, columns, size), atol=1e-6
    )


def test_polarize_sharpens_and_beta_zero_levels():
    score = torch.tensor([0.0, 0.5, 1.0])
    assert core.polarize(score, 2).tolist() == [0, 0.25, 1]
    assert core.polarize(score, 0).tolist() == [1, 1, 1]


@pytest.mark.parametrize("n", [1, 5, 130, 300, 1100])
def test_similarity_is_the_cosine_moved_to_the_unit_interval_and_exactly_symmetric(n):
    f = torch.randn(n, 20, generator=torch.Generator().manual_seed(n))
    sim = core.token_similarity(f)
    unit = f.double() / f.double().norm(dim=1, keepdim=True)
    torch.testing.assert_close(sim.double(), (1 + unit @ unit.T) / 2, atol=1e-6, rtol=0)
    assert torch.equal(sim, sim.T)
    assert (sim.diagonal() == 1).all()
    assert sim.min() >= 0
    assert sim.max() <= 1


def test_rows_on_demand_are_the_matrix():
    f = torch.randn(70, 12, generator=torch.Generator().manual_seed(0))
    f[3] = 0
    some = torch.tensor([0, 3, 69])
    torch.testing.assert_close(LazySimilarity.from_features(f).rows(some), core.token_similarity(f)[some])


def test_a_token_of_zero_norm_is_half_like_every_token():
    f = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    f[2] = 0
    assert (core.token_similarity(f)[2] == 0.5).all()
    assert (core.token_similarity(f)[:, 2] == 0.5).all()


def test_the_matrix_is_held_only_within_its_limit():
    f = torch.randn(100, 4)
    assert isinstance(core.build_similarity(f, 40_000), torch.Tensor)
    assert isinstance(core.build_similarity(f, 39_999), LazySimilarity)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: core.smooth(torch.zeros(10), (3, 4)), "3×4 grid needs 12 scores"),
        (lambda: core.smooth(torch.zeros(12), (3, 4), size=4), "odd.*got 4"),
        (lambda: core.smooth(torch.zeros(12), (3, 4), sigma=0), "sigma.*got 0"),
        (lambda: core.polarize(torch.zeros(3), -1), "beta must be 0 or more, got -1"),
        (lambda: core.token_similarity(torch.tensor([[1.0, float("inf")]])), r"features\[0, 1\] is inf"),
        (lambda: core.token_similarity(torch.zeros(3)), "one row per token"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
