"""Loops compiled by numba: greedy facility location (of an image and of a clip), DPP and max-min on the CPU.

Elementwise passes run over contiguous rows, so that they vectorize. Sums run in the order of the index, so that a value
that is computed twice is the same to the last bit. `tie` is `eadp.core.ties.TIE_MARGIN`; `noise` is `ROUNDING_NOISE` at
the scale of the data.
"""

from __future__ import annotations

import numpy as np

from eadp.core.compilation import compiled

UNIT_ROUNDOFF = 2.0**-53
"""Relative error of one float64 rounding."""

LOWEST = -np.finfo(np.float64).max
"""The lowest finite number. Only −∞, which marks picked tokens, is lower."""

TILE = 8
"""Side of the tiles that are transposed at once. Small, as rows a power of two apart compete for few cache lines."""


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
def _maximum(values):  # type: ignore[no-untyped-def]
    """Return the largest value of a vector without NaN; the loop vectorizes because NaN is ruled out."""
    top = values[0]
    for value in values:
        top = max(top, value)
    return top


@compiled()
def _first_at_least(values, floor):  # type: ignore[no-untyped-def]
    """Return the lowest index whose value is at least `floor`, or −1."""
    for u in range(len(values)):
        if values[u] >= floor:
            return u
    return -1


@compiled()
def _count_at_least(values, floor):  # type: ignore[no-untyped-def]
    count = 0
    for value in values:
        count += value >= floor
    return count


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
def _raised_weight(row, weights, covered, noise):  # type: ignore[no-untyped-def]
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
def _append_lowest_indices(order, done, n):  # type: ignore[no-untyped-def]
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
def _raise_coverage(row, weights, covered, changed, before):  # type: ignore[no-untyped-def]
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
    reached, tie_loss, scale, updates, done = 0.0, 0.0, _maximum(gains), 0, 0
    while done < limit and (done == 0 or reached < goal + single_share * picked_gains[0]):
        best_gain = _maximum(gains)
        floor = best_gain - 4.0 * (updates + n) * UNIT_ROUNDOFF * scale
        close_count = _count_at_least(gains, floor) if updates > 0 else 0
        if close_count > n // 4:
            _dense_gains(columns, weights, covered, order[:done], gains)
            best_gain = scale = _maximum(gains)
            updates = 0
        elif close_count > 1:
            for u in range(n):
                if gains[u] >= floor:
                    gains[u] = _gain_of_row(rows[u], weights, covered)
            best_gain = _maximum(gains)
        if best_gain == -np.inf:
            break
        pick = _first_at_least(gains, best_gain - max(tie * best_gain, max_rounding))
        if gains[pick] < best_gain or best_gain <= max_rounding:  # rounding may decide: apply the tie rules
            pick = _first_at_least(gains, best_gain)
            raised_weight = _raised_weight(rows[pick], weights, covered, noise)
            if raised_weight == 0.0:
                gains[pick] = -np.inf
                continue
            pick = _first_tied(gains, pick, rows[pick], noise, raised_weight, tie)

        count, gain = _raise_coverage(rows[pick], weights, covered, changed, before)
        order[done], picked_gains[done] = pick, gain
        reached += gain
        tie_loss += max(0.0, best_gain - gain)
        done += 1
        if 4 * count > 3 * n:  # recomputing is cheaper than updating
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
        done = _append_lowest_indices(order, done, n)
    return order[:done], picked_gains[:done], _sum_of_largest(gains, done), tie_loss


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


@compiled()
def _sum_of_largest(values, k):  # type: ignore[no-untyped-def]
    """Sum the k largest values, counting negative ones as 0."""
    smaller = len(values) - k
    largest = np.partition(values, smaller)[smaller:] if smaller > 0 else values
    total = 0.0
    for value in largest:
        total += max(0.0, value)
    return total


@compiled()
def _gains_in_band(band, weights, covered, is_closed, gains, best_of_frame):  # type: ignore[no-untyped-def]
    """Compute all gains as `_dense_gains` does, −∞ for closed tokens, and the largest of each frame."""
    frames, width, n, _ = band.shape
    reach = width // 2
    gains[:] = 0.0
    for t in range(frames):
        first, last = max(0, t - reach), min(frames, t + reach + 1)
        for j in range(n):
            w, c = weights[t * n + j], covered[t * n + j]
            if w > 0.0:
                for s in range(first, last):
                    column, part = band[t, reach + s - t, j], gains[s * n : (s + 1) * n]
                    for u in range(n):
                        rise = column[u] - c
                        part[u] += w * (rise if rise > 0.0 else 0.0)
    for u in range(len(gains)):
        if is_closed[u]:
            gains[u] = -np.inf
    for s in range(frames):
        best_of_frame[s] = _maximum(gains[s * n : (s + 1) * n])


@compiled()
def _lower_gains_in_band(band, frame, weights, covered, changed, before, gains):  # type: ignore[no-untyped-def]
    """Lower the gains of all tokens near a frame, some of whose tokens are now covered better.

    As in `facility_greedy`: when the coverage of column j rises from o to n, the gain of candidate u falls by
    w_j · max(0, min(S_uj, n) − o).
    """
    frames, width, n, _ = band.shape
    reach = width // 2
    for c in range(len(changed)):
        j = changed[c]
        w, old, new = weights[frame * n + j], before[c], covered[frame * n + j]
        for s in range(max(0, frame - reach), min(frames, frame + reach + 1)):
            column, part = band[frame, reach + s - frame, j], gains[s * n : (s + 1) * n]
            for u in range(n):
                value = np.float64(column[u])
                rise = (value if value < new else new) - old
                part[u] -= w * (rise if rise > 0.0 else 0.0)


@compiled()
def _first_tied_in_band(band, gains, best_of_frame, is_open, best, noise, raised_weight, tie):  # type: ignore[no-untyped-def]
    """Return the lowest index that ties with the best candidate, as `_first_tied` does."""
    _, width, n, _ = band.shape
    reach, frame, token = width // 2, best // n, best % n
    best_gain, copy_floor = gains[best], band[frame, reach, token, token] - noise
    tie_floor, rounding_floor = best_gain - tie * best_gain, best_gain - noise * raised_weight
    for s in range(frame + 1):
        if is_open[s] and best_of_frame[s] >= min(tie_floor, rounding_floor):
            is_near = frame - s <= reach
            for u in range(n if s < frame else token):
                gain = gains[s * n + u]
                if gain >= tie_floor or (
                    is_near and gain >= rounding_floor and band[frame, reach + s - frame, token, u] >= copy_floor
                ):
                    return s * n + u
    return best


@compiled()
def temporal_greedy(band, weights, limit, goal, least, noise, tie):  # type: ignore[no-untyped-def]
    """Maximize the facility location objective of a clip greedily, updating the gains instead of recomputing them.

    `band[t, reach + s − t, j, u]` is the similarity of token j of frame t to token u of frame s, for |s − t| ≤ reach;
    the similarity is symmetric. The largest gain of each frame is kept, so that a pick costs only what changes near its
    frame. All gains are computed again when the rounding errors of their updates could add up to an eighth of what
    makes a tie.

    Args:
        band: S, frames×(2·reach + 1)×n×n.
        weights: frames·n.
        limit: Maximum number of picks, at least frames·least.
        goal: Stop once F reaches this value or nothing is left to gain. If it is infinite, make exactly `limit` picks.
        least: The number of tokens to pick in each frame at least.
        noise: How much rounding can change a similarity.
        tie: Share of the best gain within which gains tie.

    Returns:
        The K picks in order, their gains, the sum of the K largest remaining gains, how much more the picks would have
        gained without the tie rules, and whether `least` ruled out any candidate.
    """
    frames, width, n, _ = band.shape
    reach, total = width // 2, frames * n
    order, picked_gains = np.empty(limit, np.int64), np.zeros(limit)
    changed, before = np.empty(n, np.int64), np.empty(n)
    covered, gains, best_of_frame = np.zeros(total), np.empty(total), np.empty(frames)
    is_closed, is_open = np.zeros(total, np.bool_), np.ones(frames, np.bool_)
    lacking, missing = np.full(frames, least), frames * least
    for j in range(total):
        if weights[j] == 0.0:
            covered[j] = np.inf
    _gains_in_band(band, weights, covered, is_closed, gains, best_of_frame)
    reached, tie_loss, scale, updates, done, was_restricted = 0.0, 0.0, _maximum(gains), 0, 0, False
    while done < limit and (reached < goal or missing > 0):
        is_restricted = missing > 0 and (limit - done == missing or reached >= goal)
        best_gain, frame = -np.inf, -1
        for s in range(frames):
            is_open[s] = lacking[s] > 0 or not is_restricted
            if is_open[s] and best_of_frame[s] > best_gain:
                best_gain, frame = best_of_frame[s], s
        if frame < 0:
            break
        if 32.0 * updates * UNIT_ROUNDOFF * scale > tie * best_gain > 0.0:
            _gains_in_band(band, weights, covered, is_closed, gains, best_of_frame)
            scale, updates = _maximum(gains), 0
            continue
        was_restricted |= is_restricted
        best = frame * n + _first_at_least(gains[frame * n : (frame + 1) * n], best_gain)
        raised_weight = 0.0
        for s in range(max(0, frame - reach), min(frames, frame + reach + 1)):
            row, part = band[frame, reach + s - frame, best - frame * n], slice(s * n, (s + 1) * n)
            raised_weight += _raised_weight(row, weights[part], covered[part], noise)
        if raised_weight == 0.0:
            gains[best], is_closed[best] = -np.inf, True
            best_of_frame[frame] = _maximum(gains[frame * n : (frame + 1) * n])
            continue
        pick = _first_tied_in_band(band, gains, best_of_frame, is_open, best, noise, raised_weight, tie)
        frame = pick // n

        gain = 0.0
        gains[pick], is_closed[pick] = -np.inf, True
        for s in range(max(0, frame - reach), min(frames, frame + reach + 1)):
            row, part = band[frame, reach + s - frame, pick - frame * n], slice(s * n, (s + 1) * n)
            count, rise = _raise_coverage(row, weights[part], covered[part], changed, before)
            _lower_gains_in_band(band, s, weights, covered, changed[:count], before[:count], gains)
            gain += rise
            updates += count
        for s in range(max(0, frame - 2 * reach), min(frames, frame + 2 * reach + 1)):
            best_of_frame[s] = _maximum(gains[s * n : (s + 1) * n])
        order[done], picked_gains[done] = pick, gain
        reached += gain
        tie_loss += max(0.0, best_gain - gain)
        missing -= lacking[frame] > 0
        lacking[frame] = max(0, lacking[frame] - 1)
        done += 1
    # What is left gains nothing. The lowest indices follow, such that each frame gets its least number.
    is_picked = np.zeros(total, np.bool_)
    for pick in order[:done]:
        is_picked[pick] = True
    for u in range(total):
        frame = u // n
        if not is_picked[u] and done < limit and (lacking[frame] > 0 or (goal == np.inf and limit - done > missing)):
            order[done] = u
            done += 1
            missing -= lacking[frame] > 0
            lacking[frame] = max(0, lacking[frame] - 1)
    return order[:done], picked_gains[:done], _sum_of_largest(gains, done), tie_loss, was_restricted


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
    _append_lowest_indices(order, done, n)
    return order, gains


@compiled()
def _farthest(nearest, distance, noise, tie):  # type: ignore[no-untyped-def]
    """Return the lowest index that ties with the largest value of `nearest`.

    If no value exceeds the noise, return the lowest index that was not picked yet.
    """
    largest = _maximum(nearest)
    if largest <= noise:
        return _first_at_least(nearest, LOWEST)
    tie_floor, floor = largest - tie * largest, largest - max(tie * largest, noise)
    first = _first_at_least(nearest, floor)
    if nearest[first] >= tie_floor:
        return first
    best = _first_at_least(nearest, largest)
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
