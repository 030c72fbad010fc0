"""Gaussian smoothing and score polarization."""

import numpy as np
import pytest
import torch
from helpers import oracle
from hypothesis import given
from hypothesis import strategies as st

from eadp import core


@pytest.mark.parametrize("size", [1, 3, 5, 7])
@pytest.mark.parametrize("grid", [(24, 24), (9, 13), (4, 31)])
def test_smoothing_is_a_gaussian_with_reflected_borders(size, grid):
    score = torch.rand(grid[0] * grid[1], generator=torch.Generator().manual_seed(size))
    np.testing.assert_allclose(core.smooth(score, grid, size), oracle.smooth(score, *grid, size), atol=1e-6)


@given(rows=st.integers(1, 8), columns=st.integers(1, 8), size=st.sampled_from([3, 5, 7]))
def test_smoothing_works_on_maps_smaller_than_the_filter(rows, columns, size):
    flat = core.smooth(torch.full((rows * columns,), 0.7), (rows, columns), size)
    torch.testing.assert_close(flat, torch.full_like(flat, 0.7))
    score = torch.rand(rows * columns, generator=torch.Generator().manual_seed(rows * 8 + columns))
    np.testing.assert_allclose(
        core.smooth(score, (rows, columns), size), oracle.smooth(score, rows, columns, size), atol=1e-6
    )


def test_polarize_sharpens_and_beta_zero_makes_all_weights_equal():
    score = torch.tensor([0.0, 0.5, 1.0])
    assert core.polarize(score, 2).tolist() == [0, 0.25, 1]
    assert core.polarize(score, 0).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: core.smooth(torch.zeros(10), (3, 4)), "grids of 3×4 need 12 scores"),
        (lambda: core.smooth(torch.zeros(12), (3, 4), size=4), "odd.*got 4"),
        (lambda: core.smooth(torch.zeros(12), (3, 4), sigma=0), "sigma.*got 0"),
        (lambda: core.polarize(torch.zeros(3), -1), "beta must be 0 or more, got -1"),
    ],
)
def test_invalid_input_is_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_maps_of_different_grids_are_each_smoothed_by_themselves():
    grids = [(3, 4), (2, 2), (3, 4), (1, 5)]
    score = torch.rand(33, generator=torch.Generator().manual_seed(0))
    parts = score.split([rows * columns for rows, columns in grids])
    expected = torch.cat([core.smooth(part, grid) for part, grid in zip(parts, grids, strict=True)])
    torch.testing.assert_close(core.smooth_maps(score, grids), expected)
