"""Spatial smoothing (Eq. 11) and score polarization (Eq. 12), the first steps of stage 2."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from eadp.core import checks
from eadp.core.backends import choose_backend
from eadp.core.trace import part
from eadp.core.types import Grid

LARGEST_FILTER_IN_KERNEL = 15
"""Larger filters run in torch operations, row by row and column by column."""


def gaussian_taps(size: int, sigma: float) -> Tensor:
    """Return the `size` taps of a one-dimensional Gaussian filter, which add up to 1."""
    offsets = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    taps = torch.exp(-(offsets**2) / (2 * sigma**2))
    return taps / taps.sum()


def reflect_indices(length: int, reach: int, device: torch.device) -> Tensor:
    """Return the indices of a line padded by reflection: … 2 1 | 0 1 2 … The edge itself is not repeated.

    Args:
        length: Number of cells of the line. If it is shorter than the reach, it is reflected repeatedly; a single cell
            is repeated.
        reach: Number of cells added at each end.
        device: Device of the result.

    Returns:
        length + 2·reach indices.
    """
    period = max(1, 2 * (length - 1))
    positions = torch.arange(-reach, length + reach, device=device).remainder(period)
    return torch.where(positions < length, positions, period - positions)


def smooth(score: Tensor, grid: Grid, size: int = 3, sigma: float = 1.0) -> Tensor:
    """Smooth a score map with a Gaussian: S_smooth = S_2D * G (Eq. 11), with reflection padding.

    Args:
        score: N, the map row by row.
        grid: (rows, columns) of the map.
        size: Side of the filter, odd. 1 turns smoothing off.
        sigma: Standard deviation of the Gaussian, in cells.

    Returns:
        N, the smoothed map, in float32 or better.

    Raises:
        ValueError: If the score does not fill the grid, or `size` or `sigma` is out of range.
    """
    return smooth_maps(score, [grid], size, sigma)


@part("smoothing")
def polarize(score: Tensor, beta: float) -> Tensor:
    """Raise a score to the power β: ŝ_j = s_j^β (Eq. 12).

    Args:
        score: N. Negative values count as 0.
        beta: β ≥ 0. Values above 1 sharpen the map; 0 gives every token the same weight.

    Returns:
        N, the polarized score.

    Raises:
        ValueError: If `beta` is negative or infinite.
    """
    check_beta(beta)
    return score.clamp_min(0) ** beta


def guess_grids(cells: int) -> list[Grid]:
    """Guess the grids of a block from its size, as EADP's release does on LLaVA.

    The release reads a multiple of 576 cells as that many 24×24 maps and any other square number as one square map. It
    does not smooth blocks of other sizes; for these the list is empty.
    """
    if cells % 576 == 0:
        return [(24, 24)] * (cells // 576)
    side = math.isqrt(cells)
    return [(side, side)] if side * side == cells else []


def smooth_and_polarize(
    score: Tensor, grids: Sequence[Grid], size: int = 3, sigma: float = 1.0, beta: float = 1.0, *, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Apply `smooth_maps` and `polarize`; on CUDA and ROCm in one launch.

    Args:
        score: N, the maps one after the other, each row by row.
        grids: (rows, columns) of each map.
        size: As for `smooth`.
        sigma: As for `smooth`.
        beta: As for `polarize`.
        backend: `triton` for one launch, `torch` for torch operations, or `auto`: triton on CUDA and ROCm. Filters of
            more than 15 cells, and float64, always run in torch operations.

    Returns:
        The smoothed and the polarized maps, N each.
    """
    _check_maps(score, grids)
    check_smoothing(size, sigma)
    check_beta(beta)
    if (
        choose_backend(backend, score.device) == "triton"
        and size <= LARGEST_FILTER_IN_KERNEL
        and score.dtype != torch.float64
    ):
        from eadp.core.triton import smoothing

        with part("smoothing"):
            return smoothing.smooth_maps(score, grids, gaussian_taps(size, sigma).tolist(), beta)
    smoothed = smooth_maps(score, grids, size, sigma)
    return smoothed, polarize(smoothed, beta)


def _check_maps(score: Tensor, grids: Sequence[Grid]) -> None:
    """Raise ValueError unless there is one score per cell."""
    cells = sum(rows * columns for rows, columns in grids)
    if score.ndim != 1 or len(score) != cells:
        shape = " and ".join(f"{rows}×{columns}" for rows, columns in dict.fromkeys(grids))
        raise ValueError(f"grids of {shape} need {cells} scores, got shape {tuple(score.shape)}")


@part("smoothing")
def smooth_maps(score: Tensor, grids: Sequence[Grid], size: int = 3, sigma: float = 1.0) -> Tensor:
    """Apply `smooth` to several maps whose scores are concatenated; maps of the same grid are smoothed at once."""
    _check_maps(score, grids)
    check_smoothing(size, sigma)
    cells = [rows * columns for rows, columns in grids]
    score = score.to(torch.promote_types(score.dtype, torch.float32))
    if size == 1:
        return score
    if len(set(grids)) == 1:
        return _smooth_equal_grids(score.view(len(grids), *grids[0]), size, sigma).flatten()
    maps = score.split(cells)
    smoothed = list(maps)
    for grid in dict.fromkeys(grids):
        same = [which for which, each in enumerate(grids) if each == grid]
        together = _smooth_equal_grids(torch.stack([maps[which].view(grid) for which in same]), size, sigma)
        for which, each in zip(same, together, strict=True):
            smoothed[which] = each.flatten()
    return torch.cat(smoothed)


def _smooth_equal_grids(maps: Tensor, size: int, sigma: float) -> Tensor:
    """Smooth B maps, given as B×rows×columns."""
    # A Gaussian is separable: one pass over rows and one over columns equal the two-dimensional filter.
    taps = gaussian_taps(size, sigma).to(maps)
    reach = size // 2
    if reach < min(maps.shape[1:]):
        padded = F.pad(maps[:, None], (reach, reach, reach, reach), mode="reflect")
    else:  # PyTorch does not reflect a side repeatedly.
        row_indices = reflect_indices(maps.shape[1], reach, maps.device)
        column_indices = reflect_indices(maps.shape[2], reach, maps.device)
        padded = maps[:, row_indices][:, :, column_indices][:, None]
    return F.conv2d(F.conv2d(padded, taps.view(1, 1, -1, 1)), taps.view(1, 1, 1, -1))[:, 0]


def check_smoothing(size: int, sigma: float) -> None:
    """Raise ValueError unless `size` is odd and `sigma` is positive."""
    if size < 1 or size % 2 == 0:
        raise ValueError(f"smoothing size must be odd and at least 1 (1 is off), got {size}")
    checks.positive("sigma", sigma)


def check_beta(beta: float) -> None:
    """Raise ValueError unless `beta` is finite and at least 0."""
    if not 0 <= beta < math.inf:
        raise ValueError(f"beta must be 0 or more, got {beta}")
