"""Greedy facility location on the CPU."""

from __future__ import annotations

import numpy as np

from eadp.core.compilation import compiled
from eadp.core.kernels.scan import (
    UNIT_ROUNDOFF,
    append_lowest_indices,
    count_at_least,
    first_at_least,
    maximum,
    sum_of_largest,
)


@compiled()
def _dense_gains(columns, weights, covered, picked, gains):  # type: ignore[no-untyped-def]
    """Compute gain(u) = Σ_j w_j · max(0, S_uj − C_j) (Eq. 14) for all u into `gains`; −∞ for picked tokens."""
    gains[:] = 0.0
    for j in range(len(weights)):
        w, c = weights[j], covered[j]
        if w > 0.0:
            column = columns[j]
            for u in range(len(gains)):
                rise = column[u] - c
                gains[u] += w * (rise if rise > 0.0 else 0.0)
    for u in picked:
        gains[u] = -np.inf


@compiled()
def _first_gains(columns, weights, gains):  # type: ignore[no-untyped-def]
    """Compute the gains before the first pick into `gains`: gain(u) = Σ_j w_j · S_uj."""
    gains[:] = 0.0
    for j in range(len(weights)):
        w, column = weights[j], columns[j]
        for u in range(len(gains)):
            gains[u] += w * column[u]


@compiled()
def _gain_of_row(row, weights, covered):  # type: ignore[no-untyped-def]
    """Compute the gain of one candidate from its row of S: the same sum in the same order as in `_dense_gains`."""
    total = 0.0
    for j in range(len(weights)):
        rise = row[j] - covered[j]
        if rise > 0.0:
            total += weights[j] * rise
    return total


@compiled(fastmath={"reassoc"})
def sum_raised_weight(row, weights, covered, noise):  # type: ignore[no-untyped-def]
    """Sum the weights of the columns whose coverage this row would raise by more than rounding."""
    total = 0.0
    for j in range(len(row)):
        total += weights[j] if row[j] - covered[j] > noise else 0.0
    return total


@compiled()
def _first_tied(gains, best, row, noise, raised_weight, tie):  # type: ignore[no-untyped-def]
    """Return the lowest index that ties with the best candidate; `row` is the best candidate's row of S."""
    best_gain, copy_floor = gains[best], row[best] - noise
    tie_floor, rounding_floor = best_gain - tie * best_gain, best_gain - noise * raised_weight
    floor = min(tie_floor, rounding_floor)
    for u in range(best):
        if gains[u] >= floor and (gains[u] >= tie_floor or row[u] >= copy_floor):
            return u
    return best


@compiled()
def raise_coverage(row, weights, covered, changed, before):  # type: ignore[no-untyped-def]
    """Update the coverage, C ← max(C, row); return how many columns rose, and the gain.

    The columns that rose and their former coverage are written to `changed` and `before`. Late in a run few columns
    rise, and one vectorized comparison skips most chunks.
    """
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


@compiled()
def facility_greedy(rows, columns, weights, limit, goal, single_share, noise, tie):  # type: ignore[no-untyped-def]
    """Maximize the facility location objective greedily, updating the gains instead of recomputing them.

    When the coverage of column j rises from o to n, the gain of candidate u falls by w_j · max(0, min(S_uj, n) − o).
    That is one pass over column j, and after the first picks few columns rise at each step. Every update may round, so
    the gains are known only to within an error bound. Candidates that are this close to the best are summed again
    before one of them is picked.

    Args:
        rows: S, N×N.
        columns: Sᵀ; the same array if S is symmetric.
        weights: N.
        limit: Maximum number of picks.
        goal: Stop once F reaches this value plus `single_share` of the first gain, or nothing is left to gain. If it is
            infinite, make exactly `limit` picks.
        single_share: Share of the first gain that is added to the goal.
        noise: How much rounding can change a similarity.
        tie: Share of the best gain within which gains tie.

    Returns:
        The K picks in order, their gains, the sum of the K largest remaining gains, and how much more the picks would
        have gained without the tie rules.
    """
    n = len(rows)
    order, picked_gains = np.empty(limit, np.int64), np.zeros(limit)
    changed, before = np.empty(n, np.int64), np.empty(n)
    covered, gains = np.zeros(n), np.empty(n)
    # A column without weight counts as covered, so that it never costs a pass.
    for j in range(n):
        if weights[j] == 0.0:
            covered[j] = np.inf
    max_rounding = noise * weights.sum()
    _first_gains(columns, weights, gains)
    reached, tie_loss, scale, updates, done = 0.0, 0.0, maximum(gains), 0, 0
    while done < limit and (done == 0 or reached < goal + single_share * picked_gains[0]):
        best_gain = maximum(gains)
        floor = best_gain - 4.0 * (updates + n) * UNIT_ROUNDOFF * scale
        close_count = count_at_least(gains, floor) if updates > 0 else 0
        if close_count > n // 4:
            _dense_gains(columns, weights, covered, order[:done], gains)
            best_gain = scale = maximum(gains)
            updates = 0
        elif close_count > 1:
            for u in range(n):
                if gains[u] >= floor:
                    gains[u] = _gain_of_row(rows[u], weights, covered)
            best_gain = maximum(gains)
        if best_gain == -np.inf:
            break
        pick = first_at_least(gains, best_gain - max(tie * best_gain, max_rounding))
        if gains[pick] < best_gain or best_gain <= max_rounding:  # rounding may decide: apply the tie rules
            pick = first_at_least(gains, best_gain)
            raised_weight = sum_raised_weight(rows[pick], weights, covered, noise)
            if raised_weight == 0.0:
                gains[pick] = -np.inf
                continue
            pick = _first_tied(gains, pick, rows[pick], noise, raised_weight, tie)

        count, gain = raise_coverage(rows[pick], weights, covered, changed, before)
        order[done], picked_gains[done] = pick, gain
        reached += gain
        tie_loss += max(0.0, best_gain - gain)
        done += 1
        if 4 * count > 3 * n:  # recomputing is cheaper than updating
            _dense_gains(columns, weights, covered, order[:done], gains)
            scale, updates = maximum(gains), 0
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
        done = append_lowest_indices(order, done, n)
    return order[:done], picked_gains[:done], sum_of_largest(gains, done), tie_loss


@compiled()
def facility_greedy_blocks(  # type: ignore[no-untyped-def]
    matrices, weights, limits, first, last, noise_share, tie, order, gains, figures
):
    """Solve the blocks from `first` to `last` by `facility_greedy`, into the rows of the outputs.

    `figures` receives F(all tokens), an upper bound on what as many more tokens could add, and what the tie rules gave
    away. F(all tokens) is NaN where a similarity or weight is negative or not finite; such a block is not solved.
    """
    for b in range(first, last):
        rows, w = matrices[b], weights[b]
        n = len(w)
        highest = np.zeros(n)
        is_valid = True
        for i in range(n):
            row = rows[i]
            is_valid &= 0.0 <= w[i] < np.inf
            for j in range(n):
                value = np.float64(row[j])
                is_valid &= 0.0 <= value < np.inf
                highest[j] = max(highest[j], value)
        full, largest, total = 0.0, 0.0, 0.0
        for j in range(n):
            full += w[j] * highest[j]
            total += w[j]
            if w[j] > 0.0:
                largest = max(largest, highest[j])
        figures[b, 0] = np.nan
        if is_valid and 0.0 < full < np.inf:
            noise = noise_share * largest
            picks, picked, remaining, tie_loss = facility_greedy(rows, rows, w, limits[b], np.inf, 0.0, noise, tie)
            order[b, : len(picks)] = picks
            gains[b, : len(picks)] = picked
            figures[b, 0], figures[b, 1], figures[b, 2] = full, remaining + noise * total, tie_loss
