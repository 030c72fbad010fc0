"""Facility location on CUDA and ROCm: all picks of all blocks in two launches, or one launch per pick of large blocks.

The picks are those of `kernels.facility_greedy`. Nothing is read back, and no allocation depends on data.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from eadp.core import ties
from eadp.core.backends import LARGEST_AT_ONCE, has_fast_float64
from eadp.core.solution import BlockSolution
from eadp.core.triton.facility_kernels import greedy, pick_next
from eadp.core.triton.facility_start import begin, first_gains
from eadp.core.triton.launch import launch

CHUNK = 1024
"""Largest number of candidates whose gains a program holds in registers at a time."""

GAIN_CHUNK = 128
"""Candidates per program of `first_gains` and `pick_next`. Small, so that one block occupies several processors."""

COLUMNS = 8
"""Columns that are read at a time."""

MANY_BLOCKS = 16
"""This many blocks occupy a GPU anyway, whatever their size."""

SAFE_ERROR = ties.TIE_MARGIN * 2.0**-12
"""Gains are computed again once their rounding error could exceed this share of the best gain."""

ERROR_PER_UPDATE = 4 * 2.0**-53
"""Bound on the rounding error that one update adds to a gain, as a share of the largest gain."""

COMPENSATED_ERROR = 2.0**-33
"""Bound on the rounding error of all updates together, as a share of the largest gain, with compensated sums."""


def solve(
    matrices: Tensor,
    weights: Tensor,
    sizes: Tensor,
    limits: Tensor,
    goal: Tensor | None,
    most: int,
    *,
    symmetric: bool,
    compensated: bool | None = None,
) -> BlockSolution:
    """Solve all blocks, as `batched.solve_facility` does.

    Args:
        matrices: B×N×N, the similarities of each block; entries beyond the block's size are not read.
        weights: B×N.
        sizes: B, int32, the number of tokens of each block.
        limits: B, int32, the maximum number of picks of each block.
        goal: B×2 numbers (a, b) in float64: a block is done once F reaches a · F(all tokens) + b · F(first pick), or
            nothing is left to gain. None to make `limits` picks, whatever they gain.
        most: The largest of the limits.
        symmetric: Whether the matrices are symmetric, so that their columns can be read as rows, which is faster.
        compensated: Whether to update the gains by compensated sums of float32 instead of float64. None to do so where
            float64 is slow. Input in float64 is always summed in float64.

    Returns:
        The picks of each block.
    """
    blocks, n = weights.shape
    weights = weights.contiguous()
    covering = torch.promote_types(matrices.dtype, torch.float32)
    if torch.float64 in (covering, weights.dtype):
        compensated = False
    elif compensated is None:
        compensated = not has_fast_float64(matrices.device)
    update_weights = weights.float() if compensated else weights
    is_spread = n > LARGEST_AT_ONCE and blocks < MANY_BLOCKS
    buffers = 2 if is_spread else 1
    by_row, by_entry = matrices.stride(1), matrices.stride(2)
    # A symmetric matrix is read along its rows, which are contiguous, where its columns are meant.
    by_candidate, by_column = (by_entry, by_row) if symmetric else (by_row, by_entry)
    strides = (matrices.stride(0), by_row, by_entry, by_candidate, by_column)

    gains = weights.new_empty(blocks, buffers, n, dtype=torch.float64)
    highest = weights.new_empty(blocks, n, dtype=torch.float64)
    covered = weights.new_empty(blocks, buffers, n, dtype=covering)
    before = weights.new_empty(blocks, n, dtype=covering)
    changed = weights.new_empty(blocks, n, dtype=torch.int32)
    order = torch.zeros(blocks, most, dtype=torch.long, device=weights.device)
    picked_gains = torch.zeros(blocks, most, dtype=torch.float64, device=weights.device)
    counters = weights.new_empty(blocks, 8, dtype=torch.int32)
    figures = weights.new_empty(blocks, 12 if is_spread else 4, dtype=torch.float64)
    chunk = min(CHUNK, triton.next_power_of_2(n))
    chunks = triton.cdiv(n, GAIN_CHUNK)
    options: dict[str, Any] = {
        "has_goal": goal is not None,
        "tie": ties.TIE_MARGIN,
        "error_share": COMPENSATED_ERROR / SAFE_ERROR if compensated else 0.0,
        "error_per_update": ERROR_PER_UPDATE / SAFE_ERROR,
        "compensated": compensated,
        "chunk": chunk,
        "columns": COLUMNS,
    }
    noise_share = ties.ROUNDING_NOISE
    problem = (matrices, update_weights, sizes, limits, limits if goal is None else goal)
    state = (gains, covered, before, changed, order, picked_gains, counters, figures)
    launch(
        first_gains,
        (chunks, blocks),
        matrices,
        weights,
        sizes,
        gains,
        highest,
        matrices.stride(0),
        by_candidate,
        by_column,
        n,
        buffers * n,
        symmetric=symmetric,
        chunk=GAIN_CHUNK,
        columns=COLUMNS,
        num_warps=4,
    )
    steps = 0
    if is_spread:
        launch(
            begin,
            (blocks,),
            update_weights,
            sizes,
            limits,
            highest,
            covered,
            counters,
            figures,
            n,
            2 * n,
            noise_share=noise_share,
            chunk=chunk,
            num_warps=8,
        )
        # Now and then a launch sums the gains again instead. If that is more often, `greedy` makes the last picks.
        steps = most + most // 8 + 8
        for step in range(steps):
            launch(
                pick_next,
                (chunks, blocks),
                *problem,
                *state,
                step % 2,
                *strides,
                n,
                most,
                own=GAIN_CHUNK,
                num_warps=4,
                **options,
            )
    launch(
        greedy,
        (blocks,),
        *problem,
        highest,
        *state,
        steps % 2,
        *strides,
        n,
        buffers * n,
        most,
        resumes=is_spread,
        noise_share=noise_share,
        num_warps=max(4, chunk // 128),
        **options,
    )
    return BlockSolution(order, picked_gains, gains[:, 0].clamp_min_(0), *figures[:, :4].unbind(1))
