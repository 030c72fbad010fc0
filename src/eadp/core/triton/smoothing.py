"""Spatial smoothing and polarization (Eq. 11 and 12) of all maps in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from eadp.core.device_tables import numbers_on_device
from eadp.core.triton.launch import launch
from eadp.core.types import Grid

CELLS = 256
"""Cells per program."""


@triton.jit
def _reflect(position, length):
    """Return the cell of a line at a position beyond its ends: … 2 1 | 0 1 2 …, repeatedly if need be."""
    period = tl.maximum(2 * (length - 1), 1)
    position = position % period
    position = tl.where(position < 0, position + period, position)
    return tl.where(position < length, position, period - position)


@triton.jit
def smooth_and_sharpen(
    score,
    taps,
    table,
    smoothed,
    polarized,
    beta,
    size: tl.constexpr,
    power: tl.constexpr,
    cells: tl.constexpr,
):
    """Filter one tile of a map with a Gaussian and raise it to a power. Grid: tiles of cells × maps.

    `power` is 1 or 2 for these powers β, and 0 for any other.
    """
    table += tl.program_id(1) * 3
    start = tl.load(table)
    rows = tl.load(table + 1)
    columns = tl.load(table + 2)
    cell = tl.program_id(0) * cells + tl.arange(0, cells)
    is_cell = cell < rows * columns
    row = cell // columns
    column = cell % columns
    total = tl.zeros((cells,), tl.float32)
    if size == 1:
        total = tl.load(score + start + cell, mask=is_cell, other=0.0).to(tl.float32)
    else:
        for a in range(0, size):
            from_row = start + _reflect(row + a - size // 2, rows) * columns
            line = tl.zeros((cells,), tl.float32)
            for b in range(0, size):
                value = tl.load(score + from_row + _reflect(column + b - size // 2, columns), mask=is_cell, other=0.0)
                line += tl.load(taps + b) * value.to(tl.float32)
            total += tl.load(taps + a) * line
    tl.store(smoothed + start + cell, total, mask=is_cell)
    base = tl.where(total < 0.0, 0.0, total)
    if power == 1:
        sharp = base
    elif power == 2:
        sharp = base * base
    else:
        # A base of 0 gives 0, or 1 to the power 0; what is not a number stays so.
        sharp = tl.exp2(beta * tl.log2(tl.where(base == 0.0, 1.0, base)))
        sharp = tl.where((base == 0.0) & (beta > 0.0), 0.0, sharp)
    tl.store(polarized + start + cell, sharp, mask=is_cell)


def _table(grids: Sequence[Grid], device: torch.device) -> Tensor:
    """Return the first cell, rows and columns of each map on the device."""
    table: list[int] = []
    start = 0
    for rows, columns in grids:
        table += [start, rows, columns]
        start += rows * columns
    return numbers_on_device(tuple(table), device)


def smooth_maps(score: Tensor, grids: Sequence[Grid], taps: Sequence[float], beta: float) -> tuple[Tensor, Tensor]:
    """Smooth maps of any grids and raise them to the power β.

    Args:
        score: N, the maps one after the other, in any precision up to float32.
        grids: (rows, columns) of each map.
        taps: The taps of the filter in one dimension; an odd number. A single one turns smoothing off.
        beta: β.

    Returns:
        The smoothed and the polarized maps, N each, in float32.
    """
    score = score.detach().contiguous()
    smoothed, polarized = score.new_empty(2, len(score), dtype=torch.float32)
    largest = max(rows * columns for rows, columns in grids)
    launch(
        smooth_and_sharpen,
        (triton.cdiv(largest, CELLS), len(grids)),
        score,
        numbers_on_device(tuple(taps), score.device, torch.float32),
        _table(grids, score.device),
        smoothed,
        polarized,
        float(beta),
        size=len(taps),
        power=int(beta) if beta in (1, 2) else 0,
        cells=CELLS,
        num_warps=4,
    )
    return smoothed, polarized
