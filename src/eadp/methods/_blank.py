"""Helpers of the methods that read the question, for images and questions that do not tell tokens apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eadp.core import VisualTokens, even_cells
from eadp.core.similarity import scale_rows
from eadp.methods.uniform import Uniform

EMPTY_QUESTION = "the question is empty"
COPY_DISTANCE = 1e-5
"""Rows of unit length that are no further apart than this count as copies: rounding in a vision tower is smaller."""

ALIKE = "all tokens are alike: those on an even grid stay"


def even_tokens(tokens: VisualTokens, count: int) -> Tensor:
    """Return the indices of `count` tokens on an even grid, those that `uniform` keeps; none if `count` is 0."""
    if count == 0:
        return torch.zeros(0, dtype=torch.long, device=tokens.features.device)
    return Uniform(keep=count).select(tokens).indices.to(tokens.features.device)


def one_represents_all(gains: Tensor, blocks: int) -> bool:
    """Return whether no pick after the first of each block gained anything, so that indices alone decided.

    Args:
        gains: K, the gain of each pick; 0 where rounding alone could explain it.
        blocks: The number of blocks that the picks come from.
    """
    return blocks < len(gains) and int((gains > 0).sum()) <= blocks


def are_alike(rows: Tensor, blocks: Sequence[slice]) -> bool:
    """Return whether the rows (N×d) of each block are copies of its first row, up to length and rounding."""
    unit = scale_rows(rows, "rows")
    distances = [(unit[block] - unit[block.start]).norm(dim=1).max() for block in blocks]
    return bool(torch.stack(distances).max() <= COPY_DISTANCE)


def spread_equals(tokens: VisualTokens, score: Tensor, picked: Tensor, is_pool: bool) -> Tensor:
    """Return as many tokens of each block as were picked there, on an even grid where all have the same score.

    Args:
        tokens: The visual tokens.
        score: N, a constant map is 1 everywhere; in any other, the lowest score is less.
        picked: The tokens that were picked.
        is_pool: Whether the image counts as one block.
    """
    if is_pool:
        return even_tokens(tokens, len(picked))
    spread = []
    for block, grid in zip(tokens.blocks, tokens.grids, strict=True):
        here = picked[(picked >= block.start) & (picked < block.stop)]
        if len(here) and bool((score[block] == 1).all()):
            here = (even_cells(grid, len(here))[1] + block.start).to(here)
        spread.append(here)
    return torch.cat(spread)
