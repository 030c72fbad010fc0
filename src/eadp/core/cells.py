"""Divide a grid of tokens into a given number of even cells, which `uniform` samples and `pool` averages."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from eadp.core import checks
from eadp.core.types import Grid

MAX_ASPECT_RATIO = 2.0
"""Longest side over shortest side that a cell of a regular h'×w' division may have."""


def even_cells(grid: Grid, count: int) -> tuple[Tensor, Tensor]:
    """Tile a grid with `count` cells of nearly equal size.

    The grid is divided into h' strips of rows, and each strip into columns. If count = h'·w' with cells whose aspect
    ratio is at most `MAX_ASPECT_RATIO`, the result is a regular h'×w' division. Otherwise (for a prime, say) h' makes
    the cells as square as possible, and some strips have one cell more than others.

    Args:
        grid: (rows, columns) of the tokens.
        count: Number of cells, at most rows·columns.

    Returns:
        The cell of each of the N tokens (N), and the central token of each cell (count).
    """
    checks.count("count", count, grid[0] * grid[1])
    return _tile(grid, _cells_per_strip(grid, count))


def regular_cells(grid: Grid, shape: Grid) -> tuple[Tensor, Tensor]:
    """Tile a grid with h'×w' cells.

    Args:
        grid: (rows, columns) of the tokens.
        shape: (h', w').

    Returns:
        The cell of each of the N tokens (N), and the central token of each cell (h'·w').
    """
    return _tile(grid, [shape[1]] * shape[0])


def largest_grid(grid: Grid, count: int, square: bool = False) -> Grid:
    """Find the h'×w' division of a grid with the most cells, but at most `count`.

    Divisions whose cells have an aspect ratio above `MAX_ASPECT_RATIO` are considered only if there is no other. Among
    divisions with equally many cells, the one with the squarest cells wins.

    Args:
        grid: (rows, columns) of the tokens; h' and w' do not exceed them.
        count: Maximum number of cells.
        square: Whether to require h' = w'.

    Returns:
        (h', w').
    """
    rows, columns = grid
    checks.count("count", count, rows * columns)
    if square:
        return (min(rows, columns, math.isqrt(count)),) * 2
    shapes = [(h, min(columns, count // h)) for h in range(1, min(rows, count) + 1)]
    candidates = [shape for shape in shapes if _aspect_ratio(grid, *shape) <= MAX_ASPECT_RATIO] or shapes
    return max(candidates, key=lambda shape: (shape[0] * shape[1], -_aspect_ratio(grid, *shape)))


def _tile(grid: Grid, cells_per_strip: list[int]) -> tuple[Tensor, Tensor]:
    rows, columns = grid
    owner, centres, cell = torch.empty(rows, columns, dtype=torch.long), [], 0
    for strip, parts in zip(_split_range(rows, len(cells_per_strip)), cells_per_strip, strict=True):
        for part in _split_range(columns, parts):
            owner[strip, part] = cell
            centres.append((strip.start + strip.stop - 1) // 2 * columns + (part.start + part.stop - 1) // 2)
            cell += 1
    return owner.flatten(), torch.tensor(centres)


def _cells_per_strip(grid: Grid, count: int) -> list[int]:
    rows, columns = grid
    fitting = [h for h in range(1, min(rows, count) + 1) if -(-count // h) <= columns]
    regular = [h for h in fitting if count % h == 0 and _aspect_ratio(grid, h, count / h) <= MAX_ASPECT_RATIO]
    h = min(regular or fitting, key=lambda h: _aspect_ratio(grid, h, count / h))
    return [len(range(count)[part]) for part in _split_range(count, h)]


def _split_range(length: int, parts: int) -> list[slice]:
    return [slice(part * length // parts, (part + 1) * length // parts) for part in range(parts)]


def _aspect_ratio(grid: Grid, h: int, w: float) -> float:
    """Longer side over shorter side of a cell of an h×w division; at least 1."""
    ratio = (grid[0] / h) / (grid[1] / w)
    return round(max(ratio, 1 / ratio), 9)
