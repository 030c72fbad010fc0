"""A grid cut into a given number of even cells: what `uniform` samples and `pool` averages."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from eadp.core import checks
from eadp.core.types import Grid

SKEW = 2.0
"""A cell of a regular h'×w' is at most this much longer than wide, or the other way round; else rows differ by one."""


def even_cells(grid: Grid, count: int) -> tuple[Tensor, Tensor]:
    """`count` cells that tile a rows×columns grid: the cell of each of the N tokens, and each cell's central token.

    The grid is cut into h' strips and each strip into w' columns, as alike as whole tokens allow. Where count = h'·w'
    with cells that are not long and thin, that is a regular grid. Else (a prime, say) h' is what makes cells squarest,
    and some strips have one column more than others.
    """
    checks.count("count", count, grid[0] * grid[1])
    return _tiled(grid, _columns(grid, count))


def regular_cells(grid: Grid, shape: Grid) -> tuple[Tensor, Tensor]:
    """The same for a given shape of h'×w' cells."""
    return _tiled(grid, [shape[1]] * shape[0])


def _tiled(grid: Grid, per_strip: list[int]) -> tuple[Tensor, Tensor]:
    rows, columns = grid
    owner, centres, cell = torch.empty(rows, columns, dtype=torch.long), [], 0
    for strip, parts in zip(_cuts(rows, len(per_strip)), per_strip, strict=True):
        for part in _cuts(columns, parts):
            owner[strip, part] = cell
            centres.append((strip.start + strip.stop - 1) // 2 * columns + (part.start + part.stop - 1) // 2)
            cell += 1
    return owner.flatten(), torch.tensor(centres)


def largest_grid(grid: Grid, count: int, square: bool = False) -> Grid:
    """The h'×w' with most cells among those with at most `count`, no side longer than the grid's, and squarest cells.

    square: h' = w' only.
    """
    rows, columns = grid
    checks.count("count", count, rows * columns)
    if square:
        return (min(rows, columns, math.isqrt(count)),) * 2
    sides = [(h, min(columns, count // h)) for h in range(1, min(rows, count) + 1)]
    shapely = [side for side in sides if _skew(grid, *side) <= SKEW] or sides
    return max(shapely, key=lambda side: (side[0] * side[1], -_skew(grid, *side)))


def _columns(grid: Grid, count: int) -> list[int]:
    """How many cells each strip has."""
    rows, columns = grid
    fitting = [h for h in range(1, min(rows, count) + 1) if -(-count // h) <= columns]
    regular = [h for h in fitting if count % h == 0 and _skew(grid, h, count / h) <= SKEW]
    h = min(regular or fitting, key=lambda h: _skew(grid, h, count / h))
    return [len(range(count)[cut]) for cut in _cuts(count, h)]


def _cuts(length: int, parts: int) -> list[slice]:
    return [slice(part * length // parts, (part + 1) * length // parts) for part in range(parts)]


def _skew(grid: Grid, h: int, w: float) -> float:
    """How much longer than wide a cell of h×w is, or the other way round; at least 1."""
    ratio = (grid[0] / h) / (grid[1] / w)
    return round(max(ratio, 1 / ratio), 9)
