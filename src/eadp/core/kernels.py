"""The loops that numba compiles: facility location, greedy DPP and max-min on the CPU, one thread, exact.

Elementwise passes run over contiguous rows, so that they vectorise; sums go in the order of the index, so that a value
computed twice is the same to the last bit. `noise` and `tie` are those of `eadp.core.ties`.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Matrix = NDArray[np.floating]
Vector = NDArray[np.float64]

UNIT = 2.0**-53
"""Half the distance from 1 to the next float64: the relative error of one rounding."""

LOWEST = -np.finfo(np.float64).max
"""Below every number, above −∞, which marks what is gone."""

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


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _raised(row, weights, covered, noise):  # type: ignore[no-untyped-def]
    """The weight of the columns that this row would raise by more than rounding."""
    total = 0.0
    for j in range(len(row)):
        total += weights[j] if row[j] - covered[j] > noise else 0.0
    return total


@njit(cache=True, nogil=True)
def _first_tied(gains, best, row, noise, raised, tie):  # type: ignore[no-untyped-def]
    """The lowest index that ties with the best candidate, whose row this is."""
    top, alike = gains[best], row[best] - noise
    close, rounding = top - tie * top, top - noise * raised
    floor = min(close, rounding)
    for u in range(best):
        if gains[u] >= floor and (gains[u] >= close or row[u] >= alike):
            return u
    return best


@njit(cache=True, nogil=True)
def _fill(order, done, n):  # type: ignore[no-untyped-def]
    """Nothing is left to gain: the lowest of the n indices that are left take the places from `done` on. How many."""
    left = np.ones(n, np.bool_)
    for pick in order[:done]:
        left[pick] = False
    for u in range(n):
        if left[u] and done < len(order):
            order[done] = u
            done += 1
    return done


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
def facility_greedy(rows, columns, weights, limit, goal, noise, tie):  # type: ignore[no-untyped-def]
    """Greedy facility location with gains that are kept up to date. rows: S; columns: Sᵀ, the same array if symmetric.

    When the coverage of column j rises from o to n, candidate u loses w_j · max(0, min(S_uj, n) − o): one pass over
    column j, and after the first picks few columns rise at each step. Every update may round, so a gain is known to
    within a slack; candidates that close to the best are summed anew before one of them is picked.

    Stops after `limit` picks, or once F reaches a finite `goal` or nothing is left to gain. Returns the order, the
    gains, the sum of the K largest left, and how much less the picks gained than the best because of ties.
    """
    n = len(rows)
    order, picked_gains = np.empty(limit, np.int64), np.zeros(limit)
    changed, before = np.empty(n, np.int64), np.empty(n)
    covered, gains = np.zeros(n), np.empty(n)
    # A column that weighs nothing counts as covered, and never costs a pass.
    for j in range(n):
        if weights[j] == 0.0:
            covered[j] = np.inf
    loudest = noise * weights.sum()
    _first_gains(columns, weights, gains)
    reached, behind, scale, updates, done = 0.0, 0.0, _maximum(gains), 0, 0
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
        if top == -np.inf:
            break
        pick = _first_at_least(gains, top - max(tie * top, loudest))
        if gains[pick] < top or top <= loudest:  # rounding may matter: look closely
            pick = _first_at_least(gains, top)
            raised = _raised(rows[pick], weights, covered, noise)
            if raised == 0.0:
                gains[pick] = -np.inf
                continue
            pick = _first_tied(gains, pick, rows[pick], noise, raised, tie)

        count, gain = _cover(rows[pick], weights, covered, changed, before)
        order[done], picked_gains[done] = pick, gain
        reached += gain
        behind += max(0.0, top - gain)
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
    if goal == np.inf:
        done = _fill(order, done, n)
    return order[:done], picked_gains[:done], _largest(gains, done), behind


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
def dpp_greedy(kernel, limit, noise, tie):  # type: ignore[no-untyped-def]
    """Greedy MAP of a DPP: pick the largest marginal variance, then take its share out of all the others.

    `factor` holds the rows of a partial Cholesky factor: e_j = (L_pj − Σ_s factor_sp · factor_sj) / d_p, d²_j −= e²_j.
    Each step adds to the rounding of the variances that are left: `noise` of a token's own variance, step by step.
    """
    n = len(kernel)
    own, left = np.empty(n), np.empty(n)
    for j in range(n):
        own[j] = left[j] = kernel[j, j]
    factor = np.empty((limit, n))
    order, variances = np.empty(limit, np.int64), np.zeros(limit)
    alike = (1.0 - 2.0 * noise) ** 2
    done = 0
    while done < limit:
        rounding = noise * (done + 1)
        top, pick = 0.0, -1
        for j in range(n):
            if left[j] > top and left[j] > rounding * own[j]:
                top, pick = left[j], j
        if pick < 0:
            break
        close, floor = top - tie * top, top - max(tie * top, rounding * own[pick])
        for u in range(pick):
            if left[u] >= floor and left[u] > rounding * own[u]:
                both = np.float64(kernel[pick, u])
                if left[u] >= close or both * both >= alike * own[pick] * own[u]:
                    pick = u
                    break
        variance, row = left[pick], factor[done]
        order[done], variances[done] = pick, variance
        for j in range(n):
            row[j] = kernel[pick, j]
        for s in range(done):
            share, earlier = factor[s, pick], factor[s]
            for j in range(n):
                row[j] -= share * earlier[j]
        scale = 1.0 / np.sqrt(variance)
        for j in range(n):
            row[j] *= scale
            left[j] -= row[j] * row[j]
        left[pick] = -np.inf
        done += 1
    _fill(order, done, n)
    return order, variances


@njit(cache=True, nogil=True)
def _farthest(nearest, distance, noise, tie):  # type: ignore[no-untyped-def]
    """The lowest index that ties with the largest of these distances; of those that are left if none is above noise."""
    top = _maximum(nearest)
    if top <= noise:
        return _first_at_least(nearest, LOWEST)
    close, floor = top - tie * top, top - max(tie * top, noise)
    first = _first_at_least(nearest, floor)
    if nearest[first] >= close:
        return first
    best = _first_at_least(nearest, top)
    for u in range(first, best):
        if nearest[u] >= floor and (nearest[u] >= close or distance[best, u] <= noise):
            return u
    return best


@njit(cache=True, nogil=True)
def max_min_greedy(distance, limit, noise, tie):  # type: ignore[no-untyped-def]
    """Farthest-first: start from the token whose nearest neighbour is farthest, then always the farthest from its
    nearest kept token. A distance that rounding could make is 0."""
    n = len(distance)
    nearest = np.full(n, np.inf)
    for i in range(n):
        for j in range(n):
            if j != i and distance[i, j] < nearest[i]:
                nearest[i] = distance[i, j]
    order, distances = np.empty(limit, np.int64), np.empty(limit)
    for step in range(limit):
        pick = _farthest(nearest, distance, noise, tie)
        order[step] = pick
        distances[step] = nearest[pick] if nearest[pick] > noise else 0.0
        if step == 0:
            nearest[:] = np.inf
        row = distance[pick]
        for j in range(n):
            nearest[j] = min(nearest[j], np.float64(row[j]))
        nearest[pick] = -np.inf
    return order, distances
