"""The loops that numba compiles: facility location, greedy DPP and max-min on the CPU, one thread, exact.

Elementwise passes run over contiguous rows, so that they vectorise; sums go in the order of the index, so that a value
computed twice is the same to the last bit, and equal tokens tie exactly.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Matrix = NDArray[np.floating]
Vector = NDArray[np.float64]

UNIT = 2.0**-53
"""Half the distance from 1 to the next float64: the relative error of one rounding."""


TILE = 8
"""Side of the tiles that are turned at once: rows that lie a power of two apart share few lines of the cache."""


@njit(cache=True, nogil=True)
def is_symmetric(matrix):  # type: ignore[no-untyped-def]
    """Whether a square matrix equals its transpose, tile by tile."""
    n = len(matrix)
    turned = np.empty((TILE, TILE), matrix.dtype)
    for top in range(0, n, TILE):
        height = min(TILE, n - top)
        for left in range(top, n, TILE):
            width = min(TILE, n - left)
            for j in range(width):
                for i in range(height):
                    turned[i, j] = matrix[left + j, top + i]
            differs = False
            for i in range(height):
                for j in range(width):
                    differs |= turned[i, j] != matrix[top + i, left + j]
            if differs:
                return False
    return True


@njit(cache=True, nogil=True, fastmath={"nnan", "nsz"})
def _maximum(values):  # type: ignore[no-untyped-def]
    """The largest value of a vector without NaN (which is what lets the loop vectorise)."""
    top = values[0]
    for value in values:
        top = max(top, value)
    return top


@njit(cache=True, nogil=True)
def _first_at_least(values, floor):  # type: ignore[no-untyped-def]
    for u in range(len(values)):
        if values[u] >= floor:
            return u
    return -1


@njit(cache=True, nogil=True)
def _count_at_least(values, floor):  # type: ignore[no-untyped-def]
    count = 0
    for value in values:
        count += value >= floor
    return count


@njit(cache=True, nogil=True)
def _dense_gains(columns, weights, covered, gone, gains):  # type: ignore[no-untyped-def]
    """gain(u) = Σ_j w_j · max(0, S_uj − C_j) for all u, from scratch; −∞ for those that are gone."""
    gains[:] = 0.0
    for j in range(len(weights)):
        w, c = weights[j], covered[j]
        if w > 0.0:
            column = columns[j]
            for u in range(len(gains)):
                rise = column[u] - c
                gains[u] += w * (rise if rise > 0.0 else 0.0)
    for u in gone:
        gains[u] = -np.inf


@njit(cache=True, nogil=True)
def _first_gains(columns, weights, gains):  # type: ignore[no-untyped-def]
    """The same where nothing is covered yet: gain(u) = Σ_j w_j · S_uj."""
    gains[:] = 0.0
    for j in range(len(weights)):
        w, column = weights[j], columns[j]
        for u in range(len(gains)):
            gains[u] += w * column[u]


@njit(cache=True, nogil=True)
def _one_gain(row, weights, covered):  # type: ignore[no-untyped-def]
    """gain(u) for the one candidate whose row this is: the same sum in the same order as `_dense_gains`."""
    total = 0.0
    for j in range(len(weights)):
        rise = row[j] - covered[j]
        if rise > 0.0:
            total += weights[j] * rise
    return total


@njit(cache=True, nogil=True)
def _cover(row, weights, covered, changed, before):  # type: ignore[no-untyped-def]
    """C ← max(C, row): which columns rose, from what, how many, and the gain. Late in a run few do: most chunks are
    passed over by one vectorised comparison."""
    n, chunk, count, gain = len(row), 32, 0, 0.0
    for start in range(0, n, chunk):
        end = min(start + chunk, n)
        rises = False
        for j in range(start, end):
            rises |= row[j] > covered[j]
        if rises:
            for j in range(start, end):
                rise = row[j] - covered[j]
                if rise > 0.0:
                    gain += weights[j] * rise
                    changed[count], before[count] = j, covered[j]
                    covered[j] = row[j]
                    count += 1
    return count, gain


@njit(cache=True, nogil=True)
def facility_greedy(rows, columns, weights, limit, goal):  # type: ignore[no-untyped-def]
    """Greedy facility location with gains that are kept up to date. rows: S; columns: Sᵀ, the same array if symmetric.

    When the coverage of column j rises from o to n, candidate u loses w_j · max(0, min(S_uj, n) − o): one pass over
    column j, and after the first picks few columns rise at each step. Every update may round, so a gain is known to
    within a slack; candidates that close to the best are summed anew before one of them is picked.

    Stops after `limit` picks or once F reaches `goal`. Returns the order, the gains, and the sum of the K largest left.
    """
    n = len(rows)
    order, picked_gains = np.empty(limit, np.int64), np.empty(limit)
    changed, before = np.empty(n, np.int64), np.empty(n)
    covered, gains = np.zeros(n), np.empty(n)
    # A column that weighs nothing counts as covered, and never costs a pass.
    for j in range(n):
        if weights[j] == 0.0:
            covered[j] = np.inf
    _first_gains(columns, weights, gains)
    reached, scale, updates, done = 0.0, _maximum(gains), 0, 0
    while done < limit and reached < goal:
        top = _maximum(gains)
        floor = top - 4.0 * (updates + n) * UNIT * scale
        close = _count_at_least(gains, floor) if updates > 0 else 0
        if close > n // 4:
            _dense_gains(columns, weights, covered, order[:done], gains)
            top = scale = _maximum(gains)
            updates = 0
        elif close > 1:
            for u in range(n):
                if gains[u] >= floor:
                    gains[u] = _one_gain(rows[u], weights, covered)
            top = _maximum(gains)
        pick = _first_at_least(gains, top)

        count, gain = _cover(rows[pick], weights, covered, changed, before)
        order[done], picked_gains[done] = pick, gain
        reached += gain
        done += 1
        if 4 * count > 3 * n:  # computing a column anew is cheaper than correcting it
            _dense_gains(columns, weights, covered, order[:done], gains)
            scale, updates = _maximum(gains), 0
        else:
            gains[pick] = -np.inf
            for c in range(count):
                j = changed[c]
                column, w, old, new = columns[j], weights[j], before[c], covered[j]
                for u in range(n):
                    value = np.float64(column[u])
                    rise = (value if value < new else new) - old
                    gains[u] -= w * (rise if rise > 0.0 else 0.0)
            updates += count
    return order[:done], picked_gains[:done], _largest(gains, done)


@njit(cache=True, nogil=True)
def _largest(values, k):  # type: ignore[no-untyped-def]
    """The sum of the k largest values, those below 0 counting as 0."""
    smaller = len(values) - k
    largest = np.partition(values, smaller)[smaller:] if smaller > 0 else values
    total = 0.0
    for value in largest:
        total += max(0.0, value)
    return total


@njit(cache=True, nogil=True)
def dpp_greedy(kernel, limit):  # type: ignore[no-untyped-def]
    """Greedy MAP of a DPP: pick the largest marginal variance, then take its share out of all the others.

    `factor` holds the rows of a partial Cholesky factor: e_j = (L_pj − Σ_s factor_sp · factor_sj) / d_p, d²_j −= e²_j.
    A pick whose variance is gone (the kernel's rank is used up) explains nothing more: its row stays 0.
    """
    n = len(kernel)
    left = np.empty(n)
    for j in range(n):
        left[j] = kernel[j, j]
    vanished = 1e-12 * max(0.0, left.max())
    factor = np.zeros((limit, n))
    order, variances = np.empty(limit, np.int64), np.empty(limit)
    for step in range(limit):
        pick = np.argmax(left)
        variance = left[pick]
        order[step], variances[step] = pick, max(0.0, variance)
        if variance > vanished:
            row = factor[step]
            for j in range(n):
                row[j] = kernel[pick, j]
            for s in range(step):
                share, earlier = factor[s, pick], factor[s]
                if share != 0.0:
                    for j in range(n):
                        row[j] -= share * earlier[j]
            scale = 1.0 / np.sqrt(variance)
            for j in range(n):
                row[j] *= scale
                left[j] -= row[j] * row[j]
        left[pick] = -np.inf
    return order, variances


@njit(cache=True, nogil=True)
def max_min_greedy(distance, limit):  # type: ignore[no-untyped-def]
    """Farthest-first: start from the token whose nearest neighbour is farthest, then always the farthest from its
    nearest kept token."""
    n = len(distance)
    nearest = np.full(n, np.inf)
    for i in range(n):
        for j in range(n):
            if j != i and distance[i, j] < nearest[i]:
                nearest[i] = distance[i, j]
    order, distances = np.empty(limit, np.int64), np.empty(limit)
    pick = np.argmax(nearest)
    order[0], distances[0] = pick, nearest[pick]
    nearest[:] = np.inf
    for step in range(1, limit):
        nearest[pick] = -np.inf
        row = distance[pick]
        for j in range(n):
            nearest[j] = min(nearest[j], np.float64(row[j]))
        pick = np.argmax(nearest)
        order[step], distances[step] = pick, nearest[pick]
    return order, distances
