"""Max-min distance: all picks of all blocks in two launches, with one program per block.

The picks are those of `kernels.max_min_greedy`. Blocks with more than `CHUNK` tokens are walked in chunks. A pick reads
one row of the distances, so that one processor is enough for large blocks, too.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from eadp.core import ties
from eadp.core.device_tables import numbers_on_device
from eadp.core.triton.facility_steps import find_best
from eadp.core.triton.launch import empty_picks, launch

CHUNK = 1024
"""Largest number of tokens that a program holds in registers at a time."""

NEIGHBOUR_CHUNK = 128
"""Tokens per program of `nearest_neighbours`."""

ROWS = 8
"""Rows of the distances that are read at a time."""


@triton.jit
def nearest_neighbours(
    matrix,
    sizes,
    nearest,
    stride_block,
    stride_row,
    stride_tokens,
    chunk: tl.constexpr,
    rows: tl.constexpr,
):
    """Compute the distance of each token of a chunk to its nearest neighbour. Grid: chunks × blocks."""
    block = tl.program_id(1).to(tl.int64)
    n = tl.load(sizes + block)
    matrix += block * stride_block
    u = tl.program_id(0) * chunk + tl.arange(0, chunk)
    closest = tl.full((chunk,), float("inf"), tl.float64)
    for start in range(0, n, rows):
        j = start + tl.arange(0, rows)
        is_other = (j < n)[:, None] & (u < n)[None, :] & (j[:, None] != u[None, :])
        tile = tl.load(matrix + u.to(tl.int64)[None, :] * stride_row + j[:, None], mask=is_other, other=float("inf"))
        closest = tl.minimum(closest, tl.min(tile.to(tl.float64), 0))
    tl.store(nearest + block * stride_tokens + u, closest, mask=u < n)


@triton.jit
def max_min_greedy(
    matrix,
    sizes,
    limits,
    nearest,
    order,
    gains,
    noise,
    stride_block,
    stride_row,
    stride_tokens,
    stride_order,
    tie: tl.constexpr,
    chunk: tl.constexpr,
):
    """Pick the tokens of one block that are farthest from the earlier picks. Grid: blocks.

    `nearest` holds the distances to the nearest neighbours at first, then to the nearest picks; −∞ for picked tokens.
    Distances that could be the result of rounding count as 0.
    """
    block = tl.program_id(0).to(tl.int64)
    n = tl.load(sizes + block)
    limit = tl.load(limits + block)
    rounding = tl.load(noise)
    matrix += block * stride_block
    nearest += block * stride_tokens
    order += block * stride_order
    gains += block * stride_order
    for done in range(0, limit):
        best, largest = find_best(nearest, n, chunk)
        is_real = largest > rounding
        tie_floor = largest - tie * largest
        floor = tl.minimum(tie_floor, largest - rounding)
        row_of_best = matrix + best.to(tl.int64) * stride_row
        pick = tl.full((), 2147483647, tl.int32)
        for first in range(0, n, chunk):
            j = first + tl.arange(0, chunk)
            distance = tl.load(nearest + j, mask=j < n, other=float("-inf"))
            is_copy = tl.load(row_of_best + j, mask=j < n, other=0.0).to(tl.float64) <= rounding
            tied = (distance >= tie_floor) | ((distance >= floor) & is_copy)
            # If all distances could be the result of rounding, the lowest index that was not picked yet is next.
            candidate = (j < n) & (distance > float("-inf")) & (tied | (is_real == 0))
            pick = tl.minimum(pick, tl.min(tl.where(candidate, j, 2147483647), 0))
        # With distances that are not numbers nothing compares; any pick will do then.
        pick = tl.minimum(pick, n - 1)
        gain = tl.load(nearest + pick)
        tl.store(order + done, pick.to(tl.int64))
        tl.store(gains + done, tl.where(gain > rounding, gain, 0.0))
        tl.debug_barrier()
        for first in range(0, n, chunk):
            j = first + tl.arange(0, chunk)
            row = tl.load(matrix + pick.to(tl.int64) * stride_row + j, mask=j < n, other=0.0).to(tl.float64)
            distance = tl.load(nearest + j, mask=j < n, other=0.0)
            if done == 0:
                distance = tl.full((chunk,), float("inf"), tl.float64)
            tl.store(nearest + j, tl.where(j == pick, float("-inf"), tl.minimum(distance, row)), mask=j < n)
        tl.debug_barrier()


def solve_max_min(matrices: Tensor, sizes: Tensor, limits: Tensor, most: int, noise: float) -> tuple[Tensor, Tensor]:
    """Pick tokens of every block that are far apart.

    Args:
        matrices: B×N×N, the distances within each block; entries beyond a block's size are not read.
        sizes: B, int32, the number of tokens of each block.
        limits: B, int32, the number of picks of each block.
        most: The largest of the limits.
        noise: How much rounding can change a distance.

    Returns:
        The picks in order, B×K, and their distances. Undefined beyond a block's limit.
    """
    matrices = matrices.contiguous()
    blocks, n, _ = matrices.shape
    nearest = matrices.new_empty(blocks, n, dtype=torch.float64)
    order, gains = empty_picks(matrices, most)
    rounding = numbers_on_device((noise,), matrices.device, torch.float64)
    grid = (triton.cdiv(n, NEIGHBOUR_CHUNK), blocks)
    launch(
        nearest_neighbours,
        grid,
        matrices,
        sizes,
        nearest,
        matrices.stride(0),
        n,
        n,
        chunk=NEIGHBOUR_CHUNK,
        rows=ROWS,
        num_warps=4,
    )
    chunk = min(CHUNK, triton.next_power_of_2(n))
    launch(
        max_min_greedy,
        (blocks,),
        matrices,
        sizes,
        limits,
        nearest,
        order,
        gains,
        rounding,
        matrices.stride(0),
        n,
        n,
        most,
        tie=ties.TIE_MARGIN,
        chunk=chunk,
        num_warps=max(4, chunk // 128),
    )
    return order, gains
