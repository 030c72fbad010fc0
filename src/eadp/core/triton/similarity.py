"""The similarity matrices of all blocks in one launch, straight from the features."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from eadp.core.block_layout import BlockLayout
from eadp.core.triton.launch import launch

TILE = 64
"""Side of the tile of the matrix that one program computes."""

DEPTH = 32
"""Channels that are read at a time."""


@triton.jit
def rebound(
    features,
    starts,
    sizes,
    out,
    stride_token,
    stride_out,
    channels,
    n_padded,
    tile: tl.constexpr,
    depth: tl.constexpr,
):
    """Compute one tile of Sim_ij = (1 + cos(f_i, f_j)) / 2 and its mirror image. Grid: tiles × tiles × blocks.

    The norms are summed in the same pass. Products are in full float32, whatever precision matmuls are set to. The
    similarity to a token of zero norm is 0.5; that to a token that is not finite is NaN.
    """
    block = tl.program_id(2).to(tl.int64)
    top = tl.program_id(0)
    left = tl.program_id(1)
    n = tl.load(sizes + block)
    features += tl.load(starts + block) * stride_token
    out += block * stride_out
    if (left >= top) & (left * tile < n):
        i = top * tile + tl.arange(0, tile)
        j = left * tile + tl.arange(0, tile)
        i_offsets = i.to(tl.int64)
        j_offsets = j.to(tl.int64)
        products = tl.zeros((tile, tile), tl.float32)
        i_squares = tl.zeros((tile,), tl.float32)
        j_squares = tl.zeros((tile,), tl.float32)
        for start in range(0, channels, depth):
            c = start + tl.arange(0, depth)
            a = tl.load(
                features + i_offsets[:, None] * stride_token + c[None, :],
                mask=(i < n)[:, None] & (c < channels)[None, :],
                other=0.0,
            ).to(tl.float32)
            b = tl.load(
                features + j_offsets[:, None] * stride_token + c[None, :],
                mask=(j < n)[:, None] & (c < channels)[None, :],
                other=0.0,
            ).to(tl.float32)
            products += tl.dot(a, tl.trans(b), input_precision="ieee")
            i_squares += tl.sum(a * a, 1)
            j_squares += tl.sum(b * b, 1)
        i_norms = tl.sqrt(i_squares)
        j_norms = tl.sqrt(j_squares)
        # A norm minus itself is 0, or NaN if the norm is not finite.
        i_norms += i_norms - i_norms
        j_norms += j_norms - j_norms
        i_divisors = tl.where(i_norms == 0.0, 1.0, i_norms)
        j_divisors = tl.where(j_norms == 0.0, 1.0, j_norms)
        similarity = 0.5 + 0.5 * (products / (i_divisors[:, None] * j_divisors[None, :]))
        similarity = tl.where(similarity < 0.0, 0.0, similarity)
        similarity = tl.where(similarity > 1.0, 1.0, similarity)
        if left == top:
            similarity = tl.where(i[:, None] <= j[None, :], similarity, tl.trans(similarity))
            own = tl.where(i_norms == 0.0, 0.5, 1.0) + (i_norms - i_norms)
            similarity = tl.where(i[:, None] == j[None, :], own[:, None], similarity)
        mask = (i < n)[:, None] & (j < n)[None, :]
        tl.store(out + i_offsets[:, None] * n_padded + j_offsets[None, :], similarity, mask=mask)
        if left > top:
            mirrored = out + j_offsets[:, None] * n_padded + i_offsets[None, :]
            tl.store(mirrored, tl.trans(similarity), mask=tl.trans(mask))


def block_similarity(features: Tensor, layout: BlockLayout) -> Tensor:
    """Compute the similarity matrix of each of B blocks, as `similarity.block_similarity` does.

    Args:
        features: N×d, in any precision up to float32.
        layout: Where the blocks lie among the tokens.

    Returns:
        B×n×n, where n is the size of the largest block; float32, exactly symmetric. Entries beyond a block's size are
        undefined.
    """
    features = features.detach()
    if features.stride(1) != 1:
        features = features.contiguous()
    blocks, n = len(layout), layout.largest
    out = torch.empty(blocks, n, n, dtype=torch.float32, device=features.device)
    tiles = triton.cdiv(n, TILE)
    launch(
        rebound,
        (tiles, tiles, blocks),
        features,
        layout.starts_on_device,
        layout.sizes_on_device,
        out,
        features.stride(0),
        out.stride(0),
        features.shape[1],
        n,
        tile=TILE,
        depth=DEPTH,
        num_warps=4,
    )
    return out
