"""Merge weights: each output row is a weighted sum of tokens, new row k = Σ_j merge[k, j] · token j."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BlockMerge:
    """What one block of n tokens keeps. Indices count from the start of the block.

    Attributes:
        indices: k, the positions that the block's rows fill, sorted.
        merge: k×n merge weights, or k×(n + 1) if the block's CLS token takes part. None if tokens are kept unchanged.
        rows: k, the token that each row of `merge` stands for, −1 for none. None if row k stands for token indices[k].
    """

    indices: Tensor
    merge: Tensor | None = None
    rows: Tensor | None = None


def join_blocks(
    parts: Sequence[BlockMerge], sizes: Sequence[int], cls_per_block: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Join the indices and merge weights of all blocks.

    Args:
        parts: What each of the B blocks keeps.
        sizes: B, the number of tokens of each block, N in total.
        cls_per_block: Whether the weights have B more columns at the end, one per block, for its CLS token.

    Returns:
        The K indices, and the merge weights: K×N, or K×(N + B) with `cls_per_block`. The weights are None if no block
        merges.
    """
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    indices = torch.cat([part.indices + start for part, start in zip(parts, starts, strict=True)])
    if all(part.merge is None for part in parts):
        return indices, None
    total, row = sum(sizes), 0
    merge = torch.zeros(len(indices), total + cls_per_block * len(sizes), device=indices.device)
    for number, (part, start, size) in enumerate(zip(parts, starts, sizes, strict=True)):
        rows = slice(row, row + len(part.indices))
        weights = identity_weights(part.indices, size) if part.merge is None else part.merge
        merge[rows, start : start + size] = weights[:, :size]
        if weights.shape[1] > size:
            merge[rows, total + number] = weights[:, size]
        row = rows.stop
    return indices, merge


def join_rows(parts: Sequence[BlockMerge], sizes: Sequence[int]) -> Tensor:
    """Return which token each of the K rows stands for after `join_blocks`; −1 for none."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    rows = [part.indices if part.rows is None else part.rows for part in parts]
    return torch.cat([torch.where(each < 0, -1, each + start) for each, start in zip(rows, starts, strict=True)])


def identity_weights(indices: Tensor, total: int) -> Tensor:
    """Return K×total merge weights that keep each of the K tokens unchanged."""
    merge = torch.zeros(len(indices), total, device=indices.device)
    merge[torch.arange(len(indices), device=indices.device), indices] = 1
    return merge


def group_means(owner: Tensor, groups: int) -> Tensor:
    """Return merge weights that average the tokens of each group.

    Args:
        owner: N, the group of each token; −1 for tokens in no group.
        groups: Number of groups.

    Returns:
        groups×N; zeros for a group without tokens.
    """
    members = (owner == torch.arange(groups, device=owner.device)[:, None]).float()
    return members / members.sum(1, keepdim=True).clamp(min=1)


def add_position_after(kept: Tensor, total: int) -> Tensor:
    """Add the last free position to the kept ones, for a row that follows them where possible.

    Args:
        kept: K different positions below `total`.
        total: Number of positions.

    Returns:
        K + 1 positions, sorted.

    Raises:
        ValueError: If no position is free.
    """
    return _add_position(kept, total, last=True)


def add_position_before(kept: Tensor, total: int) -> Tensor:
    """Add the first free position to the kept ones, for a row that precedes them where possible.

    Args:
        kept: K different positions below `total`.
        total: Number of positions.

    Returns:
        K + 1 positions, sorted.

    Raises:
        ValueError: If no position is free.
    """
    return _add_position(kept, total, last=False)


def _add_position(kept: Tensor, total: int, last: bool) -> Tensor:
    is_taken = torch.zeros(total, dtype=torch.bool, device=kept.device)
    is_taken[kept] = True
    free = (~is_taken).nonzero().flatten()
    if not len(free):
        raise ValueError(f"all {total} positions are taken: there is no room for one more token; keep fewer")
    is_taken[free[-1 if last else 0]] = True
    return is_taken.nonzero().flatten()


@dataclass(frozen=True)
class SparseRows:
    """Merged rows, given by their entries that are not 0.

    Attributes:
        tokens: k, the token that each row stands for. Two rows may stand for one token.
        owners: E, the row of each entry.
        columns: E, its token.
        weights: E, its weight.
    """

    tokens: Tensor
    owners: Tensor
    columns: Tensor
    weights: Tensor

    @classmethod
    def unchanged(cls, tokens: Tensor) -> SparseRows:
        """Return rows that pass tokens on unchanged."""
        rows = torch.arange(len(tokens), device=tokens.device)
        return cls(tokens, rows, tokens, torch.ones(len(tokens), device=tokens.device))

    @classmethod
    def join(cls, parts: Sequence[SparseRows]) -> SparseRows:
        """Join several sets of rows, one after another."""
        starts = [sum(len(part.tokens) for part in parts[:number]) for number in range(len(parts))]
        owners = torch.cat([part.owners + start for part, start in zip(parts, starts, strict=True)])
        return cls(
            torch.cat([part.tokens for part in parts]),
            owners,
            torch.cat([part.columns for part in parts]),
            torch.cat([part.weights.float() for part in parts]),
        )

    def take(self, rows: Tensor) -> SparseRows:
        """Return some of the rows, in this order. rows: indices, none of them twice."""
        number = torch.full((len(self.tokens),), -1, device=rows.device)
        number[rows] = torch.arange(len(rows), device=rows.device)
        kept = number[self.owners] >= 0
        return SparseRows(self.tokens[rows], number[self.owners[kept]], self.columns[kept], self.weights[kept])

    def dense(self, total: int) -> Tensor:
        """Return the k×total merge weights. Weights of the same row and token add up."""
        merge = torch.zeros(len(self.tokens), total, device=self.tokens.device)
        return merge.index_put_((self.owners, self.columns), self.weights, accumulate=True)
