"""Passes over one vector or matrix that the selection loops share."""

from __future__ import annotations

import numpy as np

from eadp.core.compilation import compiled

TILE = 8
"""Side of the tiles that are transposed at once. Small, as rows a power of two apart compete for few cache lines."""

UNIT_ROUNDOFF = 2.0**-53
"""Relative error of one float64 rounding."""


@compiled()
def is_symmetric(matrix):  # type: ignore[no-untyped-def]
    """Return whether a square matrix equals its transpose, comparing tile by tile."""
    n = len(matrix)
    transposed = np.empty((TILE, TILE), matrix.dtype)
    for top in range(0, n, TILE):
        height = min(TILE, n - top)
        for left in range(top, n, TILE):
            width = min(TILE, n - left)
            for j in range(width):
                for i in range(height):
                    transposed[i, j] = matrix[left + j, top + i]
            differs = False
            for i in range(height):
                for j in range(width):
                    differs |= transposed[i, j] != matrix[top + i, left + j]
            if differs:
                return False
    return True


@compiled(fastmath={"nnan", "nsz"})
def maximum(values):  # type: ignore[no-untyped-def]
    """Return the largest value of a vector without NaN; the loop vectorizes because NaN is ruled out."""
    top = values[0]
    for value in values:
        top = max(top, value)
    return top


@compiled()
def first_at_least(values, floor):  # type: ignore[no-untyped-def]
    """Return the lowest index whose value is at least `floor`, or −1."""
    for u in range(len(values)):
        if values[u] >= floor:
            return u
    return -1


@compiled()
def count_at_least(values, floor):  # type: ignore[no-untyped-def]
    count = 0
    for value in values:
        count += value >= floor
    return count


@compiled()
def append_lowest_indices(order, done, n):  # type: ignore[no-untyped-def]
    """Fill `order` from position `done` on with the lowest indices not yet picked; return the new length."""
    is_left = np.ones(n, np.bool_)
    for pick in order[:done]:
        is_left[pick] = False
    for u in range(n):
        if is_left[u] and done < len(order):
            order[done] = u
            done += 1
    return done


@compiled()
def sum_of_largest(values, k):  # type: ignore[no-untyped-def]
    """Sum the k largest values, counting negative ones as 0."""
    smaller = len(values) - k
    largest = np.partition(values, smaller)[smaller:] if smaller > 0 else values
    total = 0.0
    for value in largest:
        total += max(0.0, value)
    return total
