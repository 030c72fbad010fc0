"""The kernels with which facility location starts: the first gains, and the state of large blocks."""

from __future__ import annotations

import triton
import triton.language as tl

from eadp.core.triton.facility_steps import describe_block


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
    stride_gains,
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
    tl.store(gains + block * stride_gains + u, total, mask=is_token)
    tl.store(highest + block * stride_tokens + u, tl.where(is_valid, top, float("nan")), mask=is_token)


@triton.jit
def begin(
    weights,
    sizes,
    limits,
    highest,
    covered,
    counters,
    figures,
    stride_tokens,
    stride_covered,
    noise_share: tl.constexpr,
    chunk: tl.constexpr,
):
    """Prepare the state of one large block. Grid: blocks.

    `counters` are the number of picks, the updates since the gains were summed, which buffers are current, and whether
    the block is done. `figures` are F(all tokens), how much rounding can change a similarity, the best gain when gains
    were last summed, F so far, the F to reach, and how much more the picks would have gained without the tie rules.
    """
    block = tl.program_id(0).to(tl.int64)
    n = tl.load(sizes + block)
    covered += block * stride_covered
    full, noise, is_valid = describe_block(
        weights + block * stride_tokens, highest + block * stride_tokens, covered, n, noise_share, chunk
    )
    counters += block * 8
    figures += block * 12
    for index in tl.static_range(3):
        tl.store(counters + index, 0)
    tl.store(counters + 3, 1 - (is_valid & (tl.load(limits + block) > 0)).to(tl.int32))
    tl.store(figures, tl.where(is_valid, full, float("nan")))
    tl.store(figures + 1, noise)
    for index in tl.static_range(2, 6):
        tl.store(figures + index, 0.0)
