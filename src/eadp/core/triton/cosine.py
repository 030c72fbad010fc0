"""Matrices of cosines in float64 for the DPP and for max-min, from one product and one pass over it in place."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from eadp.core.block_layout import BlockLayout
from eadp.core.trace import part
from eadp.core.triton.launch import launch

TILE = 32
"""Side of the tile of the matrix that one program computes."""


@triton.jit
def finish_cosines(
    products,
    norms,
    token_weights,
    starts,
    sizes,
    stride_block,
    n_padded,
    weighted: tl.constexpr,
    tile: tl.constexpr,
):
    """Turn one tile of products f_i · f_j and its mirror image into the result. Grid: tiles × tiles × blocks.

    That is r_i · cos(f_i, f_j) · r_j with weights r, and 1 − cos(f_i, f_j) without. The cosine with a token of zero
    norm is 0, that with a token that is not finite NaN. The matrix is exactly symmetric.
    """
    block = tl.program_id(2).to(tl.int64)
    top = tl.program_id(0)
    left = tl.program_id(1)
    n = tl.load(sizes + block)
    products += block * stride_block
    norms += block * n_padded
    if (left >= top) & (left * tile < n):
        i = top * tile + tl.arange(0, tile)
        j = left * tile + tl.arange(0, tile)
        # Below the diagonal, the entry above it.
        rows = tl.minimum(i[:, None], j[None, :]).to(tl.int64)
        columns = tl.maximum(i[:, None], j[None, :]).to(tl.int64)
        mask = (i < n)[:, None] & (j < n)[None, :]
        cosine = tl.load(products + rows * n_padded + columns, mask=mask, other=0.0)
        i_norms = tl.load(norms + i, mask=i < n, other=1.0)
        j_norms = tl.load(norms + j, mask=j < n, other=1.0)
        # A norm minus itself is 0, or NaN if the norm is not finite.
        i_norms += i_norms - i_norms
        j_norms += j_norms - j_norms
        cosine = cosine / (tl.where(i_norms == 0.0, 1.0, i_norms)[:, None] * tl.where(j_norms == 0.0, 1.0, j_norms))
        cosine = tl.where(cosine > 1.0, 1.0, tl.where(cosine < -1.0, -1.0, cosine))
        own = tl.where(i_norms == 0.0, 0.0, 1.0) + (i_norms - i_norms)
        cosine = tl.where(i[:, None] == j[None, :], own[:, None], cosine)
        if weighted:
            token_weights += tl.load(starts + block)
            i_weights = tl.load(token_weights + i, mask=i < n, other=0.0).to(tl.float64)
            j_weights = tl.load(token_weights + j, mask=j < n, other=0.0).to(tl.float64)
            result = cosine * (i_weights[:, None] * j_weights[None, :])
        else:
            result = 1.0 - cosine
        # The tile on the diagonal reads what it writes.
        tl.debug_barrier()
        i_offsets = i.to(tl.int64)
        j_offsets = j.to(tl.int64)
        tl.store(products + i_offsets[:, None] * n_padded + j_offsets[None, :], result, mask=mask)
        if left > top:
            mirrored = products + j_offsets[:, None] * n_padded + i_offsets[None, :]
            tl.store(mirrored, tl.trans(result), mask=tl.trans(mask))


def dpp_kernels(features: Tensor, weights: Tensor, layout: BlockLayout) -> Tensor:
    """Compute r_i · cos(f_i, f_j) · r_j of all blocks.

    Args:
        features: N×d, in any precision up to float32.
        weights: N, the weight r of each token.
        layout: Where the blocks lie among the tokens.

    Returns:
        B×n×n in float64, where n is the size of the largest block. Entries beyond a block's size are undefined.
    """
    return _finish(features, weights, layout)


def distances(features: Tensor, layout: BlockLayout) -> Tensor:
    """Compute 1 − cos(f_i, f_j) of all blocks; the arguments and the result are as for `dpp_kernels`."""
    return _finish(features, None, layout)


@part("similarity")
def _finish(features: Tensor, weights: Tensor | None, layout: BlockLayout) -> Tensor:
    features = features.detach()
    stacked = (layout.stack(features) if layout.is_regular else features[layout.token_index]).double()
    products = stacked @ stacked.mT
    norms = products.diagonal(dim1=-2, dim2=-1).sqrt()
    n = layout.largest
    tiles = triton.cdiv(n, TILE)
    launch(
        finish_cosines,
        (tiles, tiles, len(layout)),
        products,
        norms,
        norms if weights is None else weights.detach().contiguous(),
        layout.starts_on_device,
        layout.sizes_on_device,
        products.stride(0),
        n,
        weighted=weights is not None,
        tile=TILE,
        num_warps=4,
    )
    return products
