"""Greedy MAP inference of a DPP, and farthest-first traversal."""

from __future__ import annotations

import numpy as np

from eadp.core.compilation import compiled
from eadp.core.kernels.scan import append_lowest_indices, first_at_least, maximum

LOWEST = -np.finfo(np.float64).max
"""The lowest finite number. Only −∞, which marks picked tokens, is lower."""


@compiled()
def dpp_greedy(kernel, limit, noise, tie):  # type: ignore[no-untyped-def]
    """Pick tokens by greedy MAP inference of a DPP: each pick has the largest unexplained variance.

    `factor` holds the rows of a partial Cholesky factor. Picking p adds the row

        e_j = (L_pj − Σ_s factor_sp · factor_sj) / d_p

    and lowers the unexplained variances: d²_j ← d²_j − e²_j. Each step adds a rounding error of up to `noise` times the
    token's own variance.

    Returns:
        The picks in order, and their unexplained variances.
    """
    n = len(kernel)
    variance, unexplained = np.empty(n), np.empty(n)
    for j in range(n):
        variance[j] = unexplained[j] = kernel[j, j]
    factor = np.empty((limit, n))
    order, gains = np.empty(limit, np.int64), np.zeros(limit)
    copy_floor = (1.0 - 2.0 * noise) ** 2
    done = 0
    while done < limit:
        rounding = noise * (done + 1)
        best_gain, pick = 0.0, -1
        for j in range(n):
            if unexplained[j] > best_gain and unexplained[j] > rounding * variance[j]:
                best_gain, pick = unexplained[j], j
        if pick < 0:
            break
        tie_floor = best_gain - tie * best_gain
        floor = best_gain - max(tie * best_gain, rounding * variance[pick])
        for u in range(pick):
            if unexplained[u] >= floor and unexplained[u] > rounding * variance[u]:
                both = np.float64(kernel[pick, u])
                if unexplained[u] >= tie_floor or both * both >= copy_floor * variance[pick] * variance[u]:
                    pick = u
                    break
        gain, row = unexplained[pick], factor[done]
        order[done], gains[done] = pick, gain
        for j in range(n):
            row[j] = kernel[pick, j]
        for s in range(done):
            share, earlier = factor[s, pick], factor[s]
            for j in range(n):
                row[j] -= share * earlier[j]
        scale = 1.0 / np.sqrt(gain)
        for j in range(n):
            row[j] *= scale
            unexplained[j] -= row[j] * row[j]
        unexplained[pick] = -np.inf
        done += 1
    append_lowest_indices(order, done, n)
    return order, gains


@compiled()
def _farthest(nearest, distance, noise, tie):  # type: ignore[no-untyped-def]
    """Return the lowest index that ties with the largest value of `nearest`.

    If no value exceeds the noise, return the lowest index that was not picked yet.
    """
    largest = maximum(nearest)
    if largest <= noise:
        return first_at_least(nearest, LOWEST)
    tie_floor, floor = largest - tie * largest, largest - max(tie * largest, noise)
    first = first_at_least(nearest, floor)
    if nearest[first] >= tie_floor:
        return first
    best = first_at_least(nearest, largest)
    for u in range(first, best):
        if nearest[u] >= floor and (nearest[u] >= tie_floor or distance[best, u] <= noise):
            return u
    return best


@compiled()
def max_min_greedy(distance, limit, noise, tie):  # type: ignore[no-untyped-def]
    """Pick tokens by farthest-first traversal; distances that could be the result of rounding count as 0.

    Returns:
        The picks in order, and the distance of each to its nearest earlier pick. For the first pick, it is the distance
        to its nearest neighbour.
    """
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
