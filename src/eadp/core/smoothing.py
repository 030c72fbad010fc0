"""Stage 2's map: Gaussian smoothing, then polarisation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from eadp.core import checks
from eadp.core.trace import part
from eadp.core.types import Grid


def gaussian(size: int, sigma: float) -> Tensor:
    """The size taps of a Gaussian, adding up to 1."""
    offsets = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    taps = torch.exp(-(offsets**2) / (2 * sigma**2))
    return taps / taps.sum()


def reflected(length: int, reach: int, device: torch.device) -> Tensor:
    """Indices of a line with `reach` mirrored cells at either end: … 2 1 | 0 1 2 … The edge itself is not repeated.

    A line shorter than the reach is mirrored to and fro as often as it takes; a line of one cell repeats it.
    """
    period = max(1, 2 * (length - 1))
    around = torch.arange(-reach, length + reach, device=device).remainder(period)
    return torch.where(around < length, around, period - around)


@part("smoothing")
def smooth(score: Tensor, grid: Grid, size: int = 3, sigma: float = 1.0) -> Tensor:
    """S_smooth = S_2D * G: a size×size Gaussian over the rows×columns map, reflection at the borders. N → N.

    The Gaussian is separable, so it runs down the rows and then along the columns. size=1 leaves the map as it is.
    """
    rows, columns = grid
    if score.ndim != 1 or len(score) != rows * columns:
        raise ValueError(f"a {rows}×{columns} grid needs {rows * columns} scores, got shape {tuple(score.shape)}")
    check_smoothing(size, sigma)
    score = score.to(torch.promote_types(score.dtype, torch.float32))
    if size == 1:
        return score
    taps = gaussian(size, sigma).to(score)
    down = reflected(rows, size // 2, score.device)
    along = reflected(columns, size // 2, score.device)
    padded = score.view(rows, columns)[down][:, along][None, None]
    return F.conv2d(F.conv2d(padded, taps.view(1, 1, -1, 1)), taps.view(1, 1, 1, -1)).flatten()


@part("smoothing")
def polarize(score: Tensor, beta: float) -> Tensor:
    """ŝ = s^β: sharpens for β > 1, and β = 0 makes every token weigh the same."""
    check_beta(beta)
    return score.clamp_min(0) ** beta


def guessed_grids(cells: int) -> list[Grid]:
    """The maps that the release on LLaVA takes a block of so many cells for: a multiple of 576 is as many 24×24 maps,
    another square number one square map; it smooths nothing else (an empty list)."""
    if cells % 576 == 0:
        return [(24, 24)] * (cells // 576)
    side = math.isqrt(cells)
    return [(side, side)] if side * side == cells else []


def smooth_maps(score: Tensor, grids: Sequence[Grid], size: int = 3, sigma: float = 1.0) -> Tensor:
    """`smooth` on several maps, one behind the other."""
    parts = score.split([rows * columns for rows, columns in grids])
    return torch.cat([smooth(part, grid, size, sigma) for part, grid in zip(parts, grids, strict=True)])


def check_smoothing(size: int, sigma: float) -> None:
    if size < 1 or size % 2 == 0:
        raise ValueError(f"smoothing size must be odd and at least 1 (1 is off), got {size}")
    checks.positive("sigma", sigma)


def check_beta(beta: float) -> None:
    if not 0 <= beta < math.inf:
        raise ValueError(f"beta must be 0 or more, got {beta}")
