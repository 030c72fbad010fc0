"""Greedy DPP: all picks of all blocks in one launch, one program per block; or one launch per pick of large blocks.

The picks are those of `kernels.dpp_greedy`. Picking p adds the row e_j = (L_pj − Σ_s factor_sp · factor_sj) / d_p to
the factor, and lowers the unexplained variances: d²_j ← d²_j − e²_j. A pick reads all earlier rows, so a large block
has work for many processors: every program of a launch then finds the same pick and extends the row for its own tokens.
Unexplained variances are read from one buffer and written to another, which take turns.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from eadp.core import ties
from eadp.core.backends import LARGEST_AT_ONCE
from eadp.core.triton.facility_steps import append_lowest_indices
from eadp.core.triton.launch import empty_picks, launch

CHUNK = 1024
"""Largest number of tokens that a program holds in registers at a time."""

OWN_CHUNK = 128
"""Tokens per program where a block is spread over many."""

FACTOR_ROWS = 4
"""Rows of the factor that are read at a time. More would not fit into the registers of an A100."""

MANY_BLOCKS = 16
"""This many blocks occupy a GPU anyway, whatever their size."""


@triton.jit
def _find_pick(
    matrix,
    variance,
    unexplained,
    done,
    n,
    stride_row,
    noise: tl.constexpr,
    tie: tl.constexpr,
    copy_floor: tl.constexpr,
    chunk: tl.constexpr,
):
    """Return the lowest index that ties with the largest unexplained variance; −1 if only rounding is left."""
    rounding = noise * (done + 1).to(tl.float64)
    best_gain = tl.zeros((), tl.float64)
    pick = tl.full((), -1, tl.int32)
    for first in range(0, n, chunk):
        j = first + tl.arange(0, chunk)
        left = tl.load(unexplained + j, mask=j < n, other=float("-inf"))
        own = tl.load(variance + j, mask=j < n, other=0.0)
        left = tl.where(left > rounding * own, left, 0.0)
        top = tl.max(left, 0)
        where = tl.min(tl.where(left == top, j, 2147483647), 0)
        pick = tl.where(top > best_gain, where, pick)
        best_gain = tl.maximum(best_gain, top)
    if pick >= 0:
        own_best = tl.load(variance + pick)
        tie_floor = best_gain - tie * best_gain
        floor = tl.minimum(tie_floor, best_gain - rounding * own_best)
        row_of_best = matrix + pick.to(tl.int64) * stride_row
        for first in range(0, n, chunk):
            j = first + tl.arange(0, chunk)
            left = tl.load(unexplained + j, mask=j < n, other=float("-inf"))
            own = tl.load(variance + j, mask=j < n, other=0.0)
            both = tl.load(row_of_best + j, mask=j < n, other=0.0).to(tl.float64)
            is_copy = both * both >= copy_floor * own_best * own
            tied = (left > rounding * own) & ((left >= tie_floor) | ((left >= floor) & is_copy))
            pick = tl.minimum(pick, tl.min(tl.where(tied, j, 2147483647), 0))
    return pick


@triton.jit
def _extend_factor(
    matrix,
    unexplained,
    after,
    factor,
    j,
    pick,
    gain,
    done,
    n,
    stride_row,
    stride_tokens,
    rows: tl.constexpr,
):
    """Add the picked token's row to the factor for the tokens j, and lower their unexplained variances."""
    row = tl.load(matrix + pick.to(tl.int64) * stride_row + j, mask=j < n, other=0.0).to(tl.float64)
    for start in range(0, done, rows):
        s = (start + tl.arange(0, rows)).to(tl.int64) * stride_tokens
        is_row = start + tl.arange(0, rows) < done
        share = tl.load(factor + s + pick, mask=is_row, other=0.0)
        earlier = tl.load(factor + s[:, None] + j[None, :], mask=is_row[:, None] & (j < n)[None, :], other=0.0)
        row -= tl.sum(share[:, None] * earlier, 0)
    row *= 1.0 / tl.sqrt(gain)
    tl.store(factor + done.to(tl.int64) * stride_tokens + j, row, mask=j < n)
    left = tl.load(unexplained + j, mask=j < n, other=0.0)
    tl.store(after + j, tl.where(j == pick, float("-inf"), left - row * row), mask=j < n)


@triton.jit
def _start(matrix, variance, unexplained, j, n, stride_row):
    """Read the variances of the tokens j from the diagonal; nothing is explained yet."""
    diagonal = tl.load(matrix + j.to(tl.int64) * (stride_row + 1), mask=j < n, other=0.0).to(tl.float64)
    tl.store(variance + j, diagonal, mask=j < n)
    tl.store(unexplained + j, diagonal, mask=j < n)


@triton.jit
def dpp_greedy(
    matrix,
    sizes,
    limits,
    variance,
    unexplained,
    factor,
    order,
    gains,
    stride_block,
    stride_row,
    stride_tokens,
    stride_order,
    noise: tl.constexpr,
    tie: tl.constexpr,
    copy_floor: tl.constexpr,
    chunk: tl.constexpr,
    rows: tl.constexpr,
):
    """Pick the tokens of largest unexplained variance of one block. Grid: blocks."""
    block = tl.program_id(0).to(tl.int64)
    n = tl.load(sizes + block)
    limit = tl.load(limits + block)
    matrix += block * stride_block
    variance += block * stride_tokens
    unexplained += block * stride_tokens
    factor += block * stride_order * stride_tokens
    order += block * stride_order
    gains += block * stride_order
    for first in range(0, n, chunk):
        _start(matrix, variance, unexplained, first + tl.arange(0, chunk), n, stride_row)
    tl.debug_barrier()

    done = tl.zeros((), tl.int32)
    is_running = limit > 0
    while is_running:
        pick = _find_pick(matrix, variance, unexplained, done, n, stride_row, noise, tie, copy_floor, chunk)
        if pick < 0:
            is_running = limit < 0
        else:
            gain = tl.load(unexplained + pick)
            tl.store(order + done, pick.to(tl.int64))
            tl.store(gains + done, gain)
            tl.debug_barrier()
            for first in range(0, n, chunk):
                j = first + tl.arange(0, chunk)
                _extend_factor(
                    matrix, unexplained, unexplained, factor, j, pick, gain, done, n, stride_row, stride_tokens, rows
                )
            done += 1
            is_running = done < limit
        tl.debug_barrier()
    append_lowest_indices(unexplained, order, done, limit, n, False, chunk)


@triton.jit
def dpp_next(
    matrix,
    sizes,
    limits,
    variance,
    unexplained,
    factor,
    order,
    gains,
    counts,
    step,
    stride_block,
    stride_row,
    stride_tokens,
    stride_order,
    noise: tl.constexpr,
    tie: tl.constexpr,
    copy_floor: tl.constexpr,
    chunk: tl.constexpr,
    own: tl.constexpr,
    rows: tl.constexpr,
):
    """Make the pick number `step` of large blocks. Grid: chunks of `own` tokens × blocks.

    Step −1 prepares the block. A step beyond the last one that explains more than rounding adds the lowest indices.
    `counts` are the number of picks in each of the two buffers.
    """
    block = tl.program_id(1).to(tl.int64)
    n = tl.load(sizes + block)
    limit = tl.load(limits + block)
    matrix += block * stride_block
    variance += block * stride_tokens
    factor += block * stride_order * stride_tokens
    order += block * stride_order
    gains += block * stride_order
    counts += 2 * block
    j = tl.program_id(0) * own + tl.arange(0, own)
    turn = (step + 2) % 2
    now = unexplained + (2 * block + turn) * stride_tokens
    after = unexplained + (2 * block + 1 - turn) * stride_tokens
    is_first = tl.program_id(0) == 0
    if step < 0:
        _start(matrix, variance, after, j, n, stride_row)
        if is_first:
            tl.store(counts + 1 - turn, 0)
    else:
        done = tl.load(counts + turn)
        left = tl.load(now + j, mask=j < n, other=float("-inf"))
        pick = tl.full((), -1, tl.int32)
        if (done == step) & (done < limit):
            pick = _find_pick(matrix, variance, now, done, n, stride_row, noise, tie, copy_floor, chunk)
        if pick >= 0:
            gain = tl.load(now + pick)
            _extend_factor(matrix, now, after, factor, j, pick, gain, done, n, stride_row, stride_tokens, rows)
            if is_first:
                tl.store(order + done, pick.to(tl.int64))
                tl.store(gains + done, gain)
            done += 1
        else:
            tl.store(after + j, left, mask=j < n)
        if is_first:
            tl.store(counts + 1 - turn, done)
            if (step + 1 == stride_order) & (done < limit):
                append_lowest_indices(now, order, done, limit, n, False, chunk)


def solve_dpp(matrices: Tensor, sizes: Tensor, limits: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Pick tokens of every block by greedy MAP inference of a DPP.

    Args:
        matrices: B×N×N, the kernels of the blocks; entries beyond a block's size are not read.
        sizes: B, int32, the number of tokens of each block.
        limits: B, int32, the number of picks of each block.
        most: The largest of the limits.

    Returns:
        The picks in order, B×K, and their unexplained variances. Undefined beyond a block's limit.
    """
    matrices = matrices.contiguous()
    blocks, n, _ = matrices.shape
    is_spread = n > LARGEST_AT_ONCE and blocks < MANY_BLOCKS
    variance = matrices.new_empty(blocks, n, dtype=torch.float64)
    unexplained = matrices.new_empty(blocks, 2 if is_spread else 1, n, dtype=torch.float64)
    factor = matrices.new_empty(blocks, most, n, dtype=torch.float64)
    order, gains = empty_picks(matrices, most)
    chunk = min(CHUNK, triton.next_power_of_2(n))
    state = (matrices, sizes, limits, variance, unexplained, factor, order, gains)
    strides = (matrices.stride(0), n, n, most)
    options: dict[str, Any] = {
        "noise": ties.ROUNDING_NOISE,
        "tie": ties.TIE_MARGIN,
        "copy_floor": (1 - 2 * ties.ROUNDING_NOISE) ** 2,
        "chunk": chunk,
        "rows": FACTOR_ROWS,
    }
    if is_spread:
        counts = matrices.new_empty(blocks, 2, dtype=torch.int32)
        grid = (triton.cdiv(n, OWN_CHUNK), blocks)
        for step in range(-1, most):
            launch(dpp_next, grid, *state, counts, step, *strides, own=OWN_CHUNK, num_warps=4, **options)
    else:
        launch(dpp_greedy, (blocks,), *state, *strides, num_warps=max(4, chunk // 128), **options)
    return order, gains
