"""Greedy facility location over the frames of a clip."""

from __future__ import annotations

import numpy as np

from eadp.core.compilation import compiled
from eadp.core.kernels.facility import raise_coverage, sum_raised_weight
from eadp.core.kernels.scan import UNIT_ROUNDOFF, first_at_least, maximum, sum_of_largest


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
        best_of_frame[s] = maximum(gains[s * n : (s + 1) * n])


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
    reached, tie_loss, scale, updates, done, was_restricted = 0.0, 0.0, maximum(gains), 0, 0, False
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
            scale, updates = maximum(gains), 0
            continue
        was_restricted |= is_restricted
        best = frame * n + first_at_least(gains[frame * n : (frame + 1) * n], best_gain)
        raised_weight = 0.0
        for s in range(max(0, frame - reach), min(frames, frame + reach + 1)):
            row, part = band[frame, reach + s - frame, best - frame * n], slice(s * n, (s + 1) * n)
            raised_weight += sum_raised_weight(row, weights[part], covered[part], noise)
        if raised_weight == 0.0:
            gains[best], is_closed[best] = -np.inf, True
            best_of_frame[frame] = maximum(gains[frame * n : (frame + 1) * n])
            continue
        pick = _first_tied_in_band(band, gains, best_of_frame, is_open, best, noise, raised_weight, tie)
        frame = pick // n

        gain = 0.0
        gains[pick], is_closed[pick] = -np.inf, True
        for s in range(max(0, frame - reach), min(frames, frame + reach + 1)):
            row, part = band[frame, reach + s - frame, pick - frame * n], slice(s * n, (s + 1) * n)
            count, rise = raise_coverage(row, weights[part], covered[part], changed, before)
            _lower_gains_in_band(band, s, weights, covered, changed[:count], before[:count], gains)
            gain += rise
            updates += count
        for s in range(max(0, frame - 2 * reach), min(frames, frame + 2 * reach + 1)):
            best_of_frame[s] = maximum(gains[s * n : (s + 1) * n])
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
    return order[:done], picked_gains[:done], sum_of_largest(gains, done), tie_loss, was_restricted
