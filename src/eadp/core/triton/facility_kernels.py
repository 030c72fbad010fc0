"""The kernels of greedy facility location; `facility.py` launches them.

`first_gains` sums the matrix once, over all processors. `greedy` then runs one program per block and makes all of the
block's picks. A pick changes the coverage of few columns; the program lists these and reads no others. Gains are
updated rather than computed again, so rounding errors add up; once these could matter, the gains are computed again.

A large block has enough work for many processors: `begin` prepares it, and each launch of `pick_next` makes one pick.
Every program of such a launch finds the same pick and updates the gains of its own candidates. What it reads and what
it writes are therefore different buffers, which take turns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from eadp.core.triton.facility_steps import (
    append_lowest_indices,
    dense_gains,
    describe_block,
    find_best,
    first_tied,
    lost_gains,
    raise_coverage,
    raised_weight,
)


@triton.jit
def pick_next(
    matrix,
    weights,
    sizes,
    limits,
    goal,
    gains,
    covered,
    before,
    changed,
    order,
    picked_gains,
    counters,
    figures,
    turn,
    stride_block,
    stride_row,
    stride_entry,
    stride_candidate,
    stride_column,
    stride_tokens,
    stride_order,
    has_goal: tl.constexpr,
    tie: tl.constexpr,
    error_share: tl.constexpr,
    error_per_update: tl.constexpr,
    compensated: tl.constexpr,
    chunk: tl.constexpr,
    own: tl.constexpr,
    columns: tl.constexpr,
):
    """Make the next pick of large blocks, or compute their gains again. Grid: chunks of `own` candidates × blocks.

    A launch does one thing per block: it makes a pick, or rules out a candidate whose gain is rounding, or sums the
    gains again. All programs of a block find the same pick and write the same list of columns. The state is read from
    the slot of this turn (0 or 1) and written to the other one.
    """
    block = tl.program_id(1).to(tl.int64)
    n = tl.load(sizes + block)
    matrix += block * stride_block
    weights += block * stride_tokens
    before += block * stride_tokens
    changed += block * stride_tokens
    counters += block * 8
    figures += block * 12
    after_counters = counters + 4 * (1 - turn)
    after_figures = figures + 6 * (1 - turn)
    counters += 4 * turn
    figures += 6 * turn
    done = tl.load(counters)
    updates = tl.load(counters + 1)
    current = tl.load(counters + 2)
    is_done = tl.load(counters + 3)
    full = tl.load(figures)
    noise = tl.load(figures + 1)
    scale = tl.load(figures + 2)
    reached = tl.load(figures + 3)
    enough = tl.load(figures + 4)
    tie_loss = tl.load(figures + 5)
    if is_done == 0:
        after_gains = gains + (2 * block + 1 - current) * stride_tokens
        after_covered = covered + (2 * block + 1 - current) * stride_tokens
        now_gains = gains + (2 * block + current) * stride_tokens
        now_covered = covered + (2 * block + current) * stride_tokens
        u = tl.program_id(0) * own + tl.arange(0, own)
        gain = tl.load(now_gains + u, mask=u < n, other=float("-inf"))
        best, best_gain = find_best(now_gains, n, chunk)
        if updates == 0:
            scale = best_gain
        count = tl.zeros((), tl.int32)
        must_sum = (updates > 0) & ((error_share + (updates + n) * error_per_update) * scale > best_gain)
        if must_sum:
            tl.store(after_covered + u, tl.load(now_covered + u, mask=u < n), mask=u < n)
        elif best_gain <= 0.0:
            is_done = 1
        else:
            row_of_best = matrix + best.to(tl.int64) * stride_row
            raised = raised_weight(row_of_best, weights, now_covered, n, stride_entry, noise, chunk)
            if raised == 0.0:
                # What is left to gain could be the result of rounding: the token counts as having no gain.
                gain = tl.where(u == best, -1.0, gain)
                tl.store(after_covered + u, tl.load(now_covered + u, mask=u < n), mask=u < n)
            else:
                pick = first_tied(now_gains, row_of_best, best, best_gain, n, stride_entry, noise, raised, tie, chunk)
                row_of_pick = matrix + pick.to(tl.int64) * stride_row
                count, pick_gain = raise_coverage(
                    row_of_pick, weights, now_covered, after_covered, changed, before, n, stride_entry, True, chunk
                )
                gain = tl.where(u == pick, float("-inf"), gain)
                if tl.program_id(0) == 0:
                    tl.store(order + block * stride_order + done, pick.to(tl.int64))
                    tl.store(picked_gains + block * stride_order + done, pick_gain)
                if has_goal:
                    if done == 0:
                        enough = tl.load(goal + 2 * block) * full + tl.load(goal + 2 * block + 1) * pick_gain
                done += 1
                reached += pick_gain
                tie_loss += tl.maximum(best_gain - pick_gain, 0.0)
                is_done = (done >= tl.load(limits + block)).to(tl.int32)
                if has_goal:
                    is_done = is_done | (reached >= enough).to(tl.int32)
        tl.debug_barrier()
        if must_sum | (4 * count > 3 * n):  # computing the gains again is cheaper than updating them
            # Other programs may not have copied their part of the coverage yet where it did not change.
            total = dense_gains(
                matrix,
                weights,
                covered + (2 * block + tl.where(must_sum, current, 1 - current)) * stride_tokens,
                u,
                n,
                stride_candidate,
                stride_column,
                compensated,
                columns,
            )
            gain = tl.where(gain == float("-inf"), gain, total)
            updates = 0
        else:
            gain -= lost_gains(
                matrix,
                weights,
                changed,
                before,
                after_covered,
                u,
                count,
                n,
                stride_candidate,
                stride_column,
                compensated,
                columns,
            )
            updates += count
        tl.store(after_gains + u, gain, mask=u < n)
        current = 1 - current
    if tl.program_id(0) == 0:
        tl.store(after_counters, done)
        tl.store(after_counters + 1, updates)
        tl.store(after_counters + 2, current)
        tl.store(after_counters + 3, is_done)
        tl.store(after_figures, full)
        tl.store(after_figures + 1, noise)
        tl.store(after_figures + 2, scale)
        tl.store(after_figures + 3, reached)
        tl.store(after_figures + 4, enough)
        tl.store(after_figures + 5, tie_loss)


@triton.jit
def greedy(
    matrix,
    weights,
    sizes,
    limits,
    goal,
    highest,
    gains,
    covered,
    before,
    changed,
    order,
    picked_gains,
    counters,
    figures,
    turn,
    stride_block,
    stride_row,
    stride_entry,
    stride_candidate,
    stride_column,
    stride_tokens,
    stride_gains,
    stride_order,
    resumes: tl.constexpr,
    has_goal: tl.constexpr,
    noise_share: tl.constexpr,
    tie: tl.constexpr,
    error_share: tl.constexpr,
    error_per_update: tl.constexpr,
    compensated: tl.constexpr,
    chunk: tl.constexpr,
    columns: tl.constexpr,
):
    """Make all picks of one block; with `resumes`, those that `pick_next` has left. Grid: blocks.

    `figures` receives F(all tokens), the number of picks, how much more the picks would have gained without the tie
    rules, and how much rounding can change a similarity. Where the input was not valid, F(all tokens) is NaN and the
    picks are the first tokens. Gains that could be the result of rounding alone are negative at the end.
    """
    block = tl.program_id(0).to(tl.int64)
    n = tl.load(sizes + block)
    limit = tl.load(limits + block)
    matrix += block * stride_block
    weights += block * stride_tokens
    before += block * stride_tokens
    changed += block * stride_tokens
    order += block * stride_order
    picked_gains += block * stride_order
    gains += block * stride_gains
    covered += block * stride_gains
    first_buffer = gains

    done = tl.zeros((), tl.int32)
    updates = tl.zeros((), tl.int32)
    scale = tl.zeros((), tl.float64)
    reached = tl.zeros((), tl.float64)
    enough = tl.zeros((), tl.float64)
    tie_loss = tl.zeros((), tl.float64)
    if resumes:
        counters += block * 8 + 4 * turn
        figures += block * 12
        state = figures + 6 * turn
        done += tl.load(counters)
        updates += tl.load(counters + 1)
        gains += tl.load(counters + 2) * stride_tokens
        covered += tl.load(counters + 2) * stride_tokens
        full = tl.load(state)
        noise = tl.load(state + 1)
        scale += tl.load(state + 2)
        reached += tl.load(state + 3)
        enough += tl.load(state + 4)
        tie_loss += tl.load(state + 5)
        is_valid = full == full
        is_running = tl.load(counters + 3) == 0
    else:
        figures += block * 4
        highest += block * stride_tokens
        full, noise, is_valid = describe_block(weights, highest, covered, n, noise_share, chunk)
        is_running = is_valid & (limit > 0)
    tl.debug_barrier()

    while is_running:
        best, best_gain = find_best(gains, n, chunk)
        if updates == 0:
            scale = best_gain
        must_sum = (updates > 0) & ((error_share + (updates + n) * error_per_update) * scale > best_gain)
        count = tl.zeros((), tl.int32)
        if must_sum:
            count = n
        elif best_gain <= 0.0:
            is_running = is_valid & False
        else:
            row_of_best = matrix + best.to(tl.int64) * stride_row
            raised = raised_weight(row_of_best, weights, covered, n, stride_entry, noise, chunk)
            if raised == 0.0:
                # What is left to gain could be the result of rounding: the token counts as having no gain.
                tl.store(gains + best, -1.0)
            else:
                pick = first_tied(gains, row_of_best, best, best_gain, n, stride_entry, noise, raised, tie, chunk)
                tl.debug_barrier()
                row_of_pick = matrix + pick.to(tl.int64) * stride_row
                count, pick_gain = raise_coverage(
                    row_of_pick, weights, covered, covered, changed, before, n, stride_entry, False, chunk
                )
                tl.store(gains + pick, float("-inf"))
                tl.store(order + done, pick.to(tl.int64))
                tl.store(picked_gains + done, pick_gain)
                if has_goal:
                    if done == 0:
                        enough = tl.load(goal + 2 * block) * full + tl.load(goal + 2 * block + 1) * pick_gain
                done += 1
                reached += pick_gain
                tie_loss += tl.maximum(best_gain - pick_gain, 0.0)
                is_running = done < limit
                if has_goal:
                    is_running = is_running & (reached < enough)
        tl.debug_barrier()
        if 4 * count > 3 * n:  # computing the gains again is cheaper than updating them
            updates = 0
            for first in range(0, n, chunk):
                u = first + tl.arange(0, chunk)
                total = dense_gains(
                    matrix, weights, covered, u, n, stride_candidate, stride_column, compensated, columns
                )
                old_gain = tl.load(gains + u, mask=u < n, other=float("-inf"))
                tl.store(gains + u, tl.where(old_gain == float("-inf"), old_gain, total), mask=u < n)
        elif count > 0:
            updates += count
            for first in range(0, n, chunk):
                u = first + tl.arange(0, chunk)
                lost = lost_gains(
                    matrix,
                    weights,
                    changed,
                    before,
                    covered,
                    u,
                    count,
                    n,
                    stride_candidate,
                    stride_column,
                    compensated,
                    columns,
                )
                gain = tl.load(gains + u, mask=u < n, other=float("-inf"))
                tl.store(gains + u, gain - lost, mask=u < n)
        tl.debug_barrier()

    if not has_goal:
        # Nothing is left to gain: the remaining tokens follow in the order of their indices.
        done = append_lowest_indices(gains, order, done, limit, n, is_valid == 0, chunk)
    if resumes:
        for first in range(0, n, chunk):
            u = first + tl.arange(0, chunk)
            tl.store(first_buffer + u, tl.load(gains + u, mask=u < n), mask=u < n)
        tl.debug_barrier()
    tl.store(figures, tl.where(is_valid, full, float("nan")))
    tl.store(figures + 1, done.to(tl.float64))
    tl.store(figures + 2, tie_loss)
    tl.store(figures + 3, noise)
