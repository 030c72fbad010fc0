"""Facility location in two launches: all picks of all blocks.

`first_gains` sums the matrix once, over all processors. `greedy` then runs one program per block and makes all of the
block's picks. A pick changes the coverage of few columns; the program lists these and reads no others. Gains are sums
in float64. They are updated rather than computed again, so rounding errors add up; once these could matter, the gains
are computed again. The picks are therefore those of `kernels.facility_greedy`.

Blocks with more than `CHUNK` candidates are walked in chunks: the gains stay in memory, and one chunk at a time is
updated in registers. The number of launches is the same for every N, K and number of blocks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from eadp.core import ties
from eadp.core.solution import BlockSolution
from eadp.core.triton.launch import launch

CHUNK = 1024
"""Largest number of candidates whose gains a program holds in registers at a time."""

GAIN_CHUNK = 128
"""Candidates per program of `first_gains`. Small, so that one block of 576 tokens occupies several processors."""

COLUMNS = 8
"""Columns that are read at a time."""

ERROR_PER_UPDATE = 4 * 2.0**-53
"""Bound on the rounding error that one update adds to a gain, as a share of the largest gain."""

SAFE_ERROR = ties.TIE_MARGIN * 2.0**-12
"""Gains are computed again once their rounding error could exceed this share of the best gain."""


@triton.jit
def first_gains(
    matrix,
    weights,
    sizes,
    gains,
    highest,
    stride_block,
    stride_candidate,
    stride_column,
    stride_tokens,
    symmetric: tl.constexpr,
    chunk: tl.constexpr,
    columns: tl.constexpr,
):
    """Compute Σ_j w_j · S_uj and max_u S_uj for one chunk of one block.

    Grid: chunks × blocks. The maximum is NaN where a similarity or the weight is negative or not finite.
    """
    block = tl.program_id(1).to(tl.int64)
    n = tl.load(sizes + block)
    matrix += block * stride_block
    weights += block * stride_tokens
    u = tl.program_id(0) * chunk + tl.arange(0, chunk)
    is_token = u < n
    u_offsets = u.to(tl.int64)
    total = tl.zeros((chunk,), tl.float64)
    top = tl.zeros((chunk,), tl.float64)
    own_weight = tl.load(weights + u, mask=is_token, other=0.0).to(tl.float64)
    is_valid = (own_weight >= 0.0) & (own_weight < float("inf"))
    for start in range(0, n, columns):
        j = start + tl.arange(0, columns)
        mask = (j < n)[:, None] & is_token[None, :]
        j_offsets = j.to(tl.int64)[:, None]
        tile = tl.load(
            matrix + u_offsets[None, :] * stride_candidate + j_offsets * stride_column, mask=mask, other=0.0
        ).to(tl.float64)
        w = tl.load(weights + j, mask=j < n, other=0.0).to(tl.float64)
        total += tl.sum(tile * w[:, None], 0)
        if not symmetric:
            tile = tl.load(
                matrix + j_offsets * stride_candidate + u_offsets[None, :] * stride_column, mask=mask, other=0.0
            ).to(tl.float64)
        top = tl.maximum(top, tl.max(tile, 0))
        is_valid = is_valid & (tl.min(((tile >= 0.0) & (tile < float("inf"))).to(tl.int32), 0) > 0)
    tl.store(gains + block * stride_tokens + u, total, mask=is_token)
    tl.store(highest + block * stride_tokens + u, tl.where(is_valid, top, float("nan")), mask=is_token)


@triton.jit
def _dense_gains(
    matrix, weights, covered, gains, n, stride_candidate, stride_column, chunk: tl.constexpr, columns: tl.constexpr
):
    """Compute gain(u) = Σ_j w_j · max(0, S_uj − C_j) (Eq. 14) of every candidate; −∞ stays for picked tokens."""
    for first in range(0, n, chunk):
        u = first + tl.arange(0, chunk)
        u_offsets = u.to(tl.int64)[None, :] * stride_candidate
        total = tl.zeros((chunk,), tl.float64)
        for start in range(0, n, columns):
            j = start + tl.arange(0, columns)
            tile = tl.load(
                matrix + u_offsets + j.to(tl.int64)[:, None] * stride_column,
                mask=(j < n)[:, None] & (u < n)[None, :],
                other=0.0,
            )
            c = tl.load(covered + j, mask=j < n, other=float("inf"))
            w = tl.load(weights + j, mask=j < n, other=0.0).to(tl.float64)
            rise = tl.maximum(tile.to(tl.float64) - c[:, None].to(tl.float64), 0.0)
            total += tl.sum(rise * w[:, None], 0)
        old = tl.load(gains + u, mask=u < n, other=float("-inf"))
        tl.store(gains + u, tl.where(old == float("-inf"), old, total), mask=u < n)


@triton.jit
def _lower_gains(
    matrix,
    weights,
    changed,
    before,
    covered,
    gains,
    count,
    n,
    stride_candidate,
    stride_column,
    chunk: tl.constexpr,
    columns: tl.constexpr,
):
    """Subtract from every candidate's gain what the columns that rose have taken from it.

    Where the coverage of column j rose from o to n, candidate u loses w_j · max(0, min(S_uj, n) − o).
    """
    for first in range(0, n, chunk):
        u = first + tl.arange(0, chunk)
        u_offsets = u.to(tl.int64)[None, :] * stride_candidate
        gain = tl.load(gains + u, mask=u < n, other=float("-inf"))
        for start in range(0, count, columns):
            k = start + tl.arange(0, columns)
            j = tl.load(changed + k, mask=k < count, other=0)
            old = tl.load(before + k, mask=k < count, other=0.0).to(tl.float64)
            new = tl.load(covered + j, mask=k < count, other=0.0).to(tl.float64)
            w = tl.load(weights + j, mask=k < count, other=0.0).to(tl.float64)
            tile = tl.load(
                matrix + u_offsets + j.to(tl.int64)[:, None] * stride_column,
                mask=(k < count)[:, None] & (u < n)[None, :],
                other=0.0,
            ).to(tl.float64)
            lost = tl.maximum(tl.minimum(tile, new[:, None]) - old[:, None], 0.0)
            gain -= tl.sum(lost * w[:, None], 0)
        tl.store(gains + u, gain, mask=u < n)


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
    figures,
    stride_block,
    stride_row,
    stride_entry,
    stride_candidate,
    stride_column,
    stride_tokens,
    stride_order,
    has_goal: tl.constexpr,
    noise_share: tl.constexpr,
    tie: tl.constexpr,
    error_per_update: tl.constexpr,
    chunk: tl.constexpr,
    columns: tl.constexpr,
):
    """Make all picks of one block. Grid: blocks.

    `figures` receives F(all tokens), the number of picks, how much more the picks would have gained without the tie
    rules, and how much rounding can change a similarity. Where the input was not valid, F(all tokens) is NaN and the
    picks are the first tokens. Gains that could be the result of rounding alone are negative at the end.
    """
    block = tl.program_id(0).to(tl.int64)
    n = tl.load(sizes + block)
    limit = tl.load(limits + block)
    matrix += block * stride_block
    weights += block * stride_tokens
    highest += block * stride_tokens
    gains += block * stride_tokens
    covered += block * stride_tokens
    before += block * stride_tokens
    changed += block * stride_tokens
    order += block * stride_order
    picked_gains += block * stride_order

    full = tl.zeros((), tl.float64)
    largest = tl.zeros((), tl.float64)
    invalid = tl.zeros((), tl.int32)
    for first in range(0, n, chunk):
        u = first + tl.arange(0, chunk)
        w = tl.load(weights + u, mask=u < n, other=0.0).to(tl.float64)
        top = tl.load(highest + u, mask=u < n, other=0.0)
        invalid += tl.sum((top != top).to(tl.int32), 0)
        full += tl.sum(w * top, 0)
        largest = tl.maximum(largest, tl.max(tl.where(w > 0.0, top, 0.0), 0))
        # A column without weight counts as covered, so that it never costs a pass.
        tl.store(covered + u, tl.where(w > 0.0, 0.0, float("inf")), mask=u < n)
    noise = noise_share * largest
    is_valid = (invalid == 0) & (full > 0.0) & (full < float("inf"))
    tl.debug_barrier()

    done = tl.zeros((), tl.int32)
    updates = tl.zeros((), tl.int32)
    scale = tl.zeros((), tl.float64)
    reached = tl.zeros((), tl.float64)
    enough = tl.zeros((), tl.float64)
    tie_loss = tl.zeros((), tl.float64)
    is_running = is_valid & (limit > 0)
    while is_running:
        best_gain = tl.full((), float("-inf"), tl.float64)
        best = tl.zeros((), tl.int32)
        for first in range(0, n, chunk):
            u = first + tl.arange(0, chunk)
            gain = tl.load(gains + u, mask=u < n, other=float("-inf"))
            top_gain = tl.max(gain, 0)
            where = tl.min(tl.where(gain == top_gain, u, 2147483647), 0)
            best = tl.where(top_gain > best_gain, where, best)
            best_gain = tl.maximum(best_gain, top_gain)
        if updates == 0:
            scale = best_gain
        if (updates > 0) & ((updates + n) * error_per_update * scale > best_gain):
            tl.debug_barrier()
            _dense_gains(matrix, weights, covered, gains, n, stride_candidate, stride_column, chunk, columns)
            updates = 0
        elif best_gain <= 0.0:
            is_running = is_valid & False
        else:
            best_row = matrix + best.to(tl.int64) * stride_row
            raised = tl.zeros((), tl.float64)
            for first in range(0, n, chunk):
                j = first + tl.arange(0, chunk)
                row = tl.load(best_row + j.to(tl.int64) * stride_entry, mask=j < n, other=0.0).to(tl.float64)
                c = tl.load(covered + j, mask=j < n, other=float("inf")).to(tl.float64)
                w = tl.load(weights + j, mask=j < n, other=0.0).to(tl.float64)
                raised += tl.sum(tl.where(row - c > noise, w, 0.0), 0)
            if raised == 0.0:
                # What is left to gain could be the result of rounding: the token counts as having no gain.
                tl.store(gains + best, -1.0)
            else:
                tie_floor = best_gain - tie * best_gain
                rounding_floor = best_gain - noise * raised
                copy_floor = tl.load(best_row + best.to(tl.int64) * stride_entry).to(tl.float64) - noise
                pick = best
                for first in range(0, n, chunk):
                    u = first + tl.arange(0, chunk)
                    gain = tl.load(gains + u, mask=u < n, other=float("-inf"))
                    row = tl.load(best_row + u.to(tl.int64) * stride_entry, mask=u < n, other=0.0).to(tl.float64)
                    tied = (gain >= tie_floor) | ((gain >= rounding_floor) & (row >= copy_floor))
                    pick = tl.minimum(pick, tl.min(tl.where(tied, u, 2147483647), 0))
                pick_row = matrix + pick.to(tl.int64) * stride_row
                count = tl.zeros((), tl.int32)
                pick_gain = tl.zeros((), tl.float64)
                tl.debug_barrier()
                for first in range(0, n, chunk):
                    j = first + tl.arange(0, chunk)
                    row = tl.load(pick_row + j.to(tl.int64) * stride_entry, mask=j < n, other=0.0)
                    row = row.to(covered.dtype.element_ty)
                    c = tl.load(covered + j, mask=j < n, other=float("inf"))
                    w = tl.load(weights + j, mask=j < n, other=0.0).to(tl.float64)
                    rises = (row > c).to(tl.int32)
                    position = count + tl.cumsum(rises, 0) - 1
                    tl.store(changed + position, j, mask=rises > 0)
                    tl.store(before + position, c, mask=rises > 0)
                    tl.store(covered + j, row, mask=rises > 0)
                    pick_gain += tl.sum(tl.where(rises > 0, (row.to(tl.float64) - c.to(tl.float64)) * w, 0.0), 0)
                    count += tl.sum(rises, 0)
                tl.store(gains + pick, float("-inf"))
                tl.store(order + done, pick.to(tl.int64))
                tl.store(picked_gains + done, pick_gain)
                if has_goal:
                    if done == 0:
                        enough = tl.load(goal) * full + tl.load(goal + 1) * pick_gain
                done += 1
                reached += pick_gain
                tie_loss += tl.maximum(best_gain - pick_gain, 0.0)
                is_running = done < limit
                if has_goal:
                    is_running = is_running & (reached < enough)
                tl.debug_barrier()
                if 4 * count > 3 * n:  # computing the gains again is cheaper than updating them
                    _dense_gains(matrix, weights, covered, gains, n, stride_candidate, stride_column, chunk, columns)
                    updates = 0
                else:
                    _lower_gains(
                        matrix,
                        weights,
                        changed,
                        before,
                        covered,
                        gains,
                        count,
                        n,
                        stride_candidate,
                        stride_column,
                        chunk,
                        columns,
                    )
                    updates += count
        tl.debug_barrier()

    if not has_goal:
        # Nothing is left to gain: the remaining tokens follow in the order of their indices.
        for first in range(0, n, chunk):
            if done < limit:
                u = first + tl.arange(0, chunk)
                gain = tl.load(gains + u, mask=u < n, other=float("-inf"))
                is_left = ((u < n) & ((gain > float("-inf")) | (is_valid == 0))).to(tl.int32)
                position = done + tl.cumsum(is_left, 0) - 1
                tl.store(order + position, u.to(tl.int64), mask=(is_left > 0) & (position < limit))
                done = tl.minimum(limit, done + tl.sum(is_left, 0))
    figures += block * 4
    tl.store(figures, tl.where(is_valid, full, float("nan")))
    tl.store(figures + 1, done.to(tl.float64))
    tl.store(figures + 2, tie_loss)
    tl.store(figures + 3, noise)


def solve(
    matrices: Tensor,
    weights: Tensor,
    sizes: Tensor,
    limits: Tensor,
    goal: Tensor | None,
    most: int,
    *,
    symmetric: bool,
) -> BlockSolution:
    """Solve all blocks, as `batched.solve_facility` does.

    Args:
        matrices: B×N×N, the similarities of each block; entries beyond the block's size are not read.
        weights: B×N.
        sizes: B, int32, the number of tokens of each block.
        limits: B, int32, the maximum number of picks of each block.
        goal: 2 numbers (a, b) in float64: a block is done once F reaches a · F(all tokens) + b · F(first pick), or
            nothing is left to gain. None to make `limits` picks, whatever they gain.
        most: The largest of the limits.
        symmetric: Whether the matrices are symmetric, so that their columns can be read as rows, which is faster.

    Returns:
        The picks of each block.
    """
    blocks, n = weights.shape
    by_row, by_entry = matrices.stride(1), matrices.stride(2)
    # A symmetric matrix is read along its rows, which are contiguous, where its columns are meant.
    by_candidate, by_column = (by_entry, by_row) if symmetric else (by_row, by_entry)
    weights = weights.contiguous()
    gains, highest = weights.new_empty(2, blocks, n, dtype=torch.float64)
    covering = torch.promote_types(matrices.dtype, torch.float32)
    covered, before = weights.new_empty(2, blocks, n, dtype=covering)
    changed = weights.new_empty(blocks, n, dtype=torch.int32)
    order = torch.zeros(blocks, most, dtype=torch.long, device=weights.device)
    picked_gains = torch.zeros(blocks, most, dtype=torch.float64, device=weights.device)
    figures = weights.new_empty(blocks, 4, dtype=torch.float64)
    launch(
        first_gains,
        (triton.cdiv(n, GAIN_CHUNK), blocks),
        matrices,
        weights,
        sizes,
        gains,
        highest,
        matrices.stride(0),
        by_candidate,
        by_column,
        n,
        symmetric=symmetric,
        chunk=GAIN_CHUNK,
        columns=COLUMNS,
        num_warps=4,
    )
    chunk = min(CHUNK, triton.next_power_of_2(n))
    launch(
        greedy,
        (blocks,),
        matrices,
        weights,
        sizes,
        limits,
        limits if goal is None else goal,
        highest,
        gains,
        covered,
        before,
        changed,
        order,
        picked_gains,
        figures,
        matrices.stride(0),
        by_row,
        by_entry,
        by_candidate,
        by_column,
        n,
        most,
        has_goal=goal is not None,
        noise_share=ties.ROUNDING_NOISE,
        tie=ties.TIE_MARGIN,
        error_per_update=ERROR_PER_UPDATE / SAFE_ERROR,
        chunk=chunk,
        columns=COLUMNS,
        num_warps=max(4, chunk // 128),
    )
    return BlockSolution(order, picked_gains, gains.clamp_min_(0), *figures.unbind(1))
