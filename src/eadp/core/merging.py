"""Kept tokens that absorb others, as weights: new row k = Σ_j merge[k, j] · token j."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Part:
    """What one block of n tokens keeps, counted from the block's start.

    indices: k slots, sorted.
    merge:   k×n, or k×(n + 1) where the block has a CLS token beside its grid; None where tokens stay as they were.
    rows:    k, which token each row of `merge` stands for, −1 for none; None: `indices`.
    """

    indices: Tensor
    merge: Tensor | None = None
    rows: Tensor | None = None


def joined(parts: Sequence[Part], sizes: Sequence[int], extra: bool = False) -> tuple[Tensor, Tensor | None]:
    """The parts of all blocks as one: K indices, and K×N weights (K×(N + E) with extra, one token a block)."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    indices = torch.cat([part.indices + start for part, start in zip(parts, starts, strict=True)])
    if all(part.merge is None for part in parts):
        return indices, None
    total, row = sum(sizes), 0
    merge = torch.zeros(len(indices), total + extra * len(sizes), device=indices.device)
    for number, (part, start, size) in enumerate(zip(parts, starts, sizes, strict=True)):
        rows = slice(row, row + len(part.indices))
        weights = unchanged(part.indices, size) if part.merge is None else part.merge
        merge[rows, start : start + size] = weights[:, :size]
        if weights.shape[1] > size:
            merge[rows, total + number] = weights[:, size]
        row = rows.stop
    return indices, merge


def stacked_rows(parts: Sequence[Part], sizes: Sequence[int]) -> Tensor:
    """K, which token each row of the joined parts stands for; −1 for none."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    rows = [part.indices if part.rows is None else part.rows for part in parts]
    return torch.cat([torch.where(each < 0, -1, each + start) for each, start in zip(rows, starts, strict=True)])


def unchanged(indices: Tensor, total: int) -> Tensor:
    """K×total, each kept token as it was."""
    merge = torch.zeros(len(indices), total, device=indices.device)
    merge[torch.arange(len(indices), device=indices.device), indices] = 1
    return merge


def group_means(owner: Tensor, groups: int) -> Tensor:
    """groups×N, the mean of each group's tokens; zeros for a group without any. owner: N, −1 for tokens in none."""
    members = (owner == torch.arange(groups, device=owner.device)[:, None]).float()
    return members / members.sum(1, keepdim=True).clamp(min=1)


def room_after(kept: Tensor, total: int) -> Tensor:
    """Slots for the kept tokens and one more row behind them, sorted: theirs, and the last free one."""
    return _with(kept, total, last=True)


def room_before(kept: Tensor, total: int) -> Tensor:
    """Slots for one more row and the kept tokens behind it, sorted: theirs, and the first free one."""
    return _with(kept, total, last=False)


def _with(kept: Tensor, total: int, last: bool) -> Tensor:
    taken = torch.zeros(total, dtype=torch.bool, device=kept.device)
    taken[kept] = True
    free = (~taken).nonzero().flatten()
    if not len(free):
        raise ValueError(f"all {total} slots are taken: there is no room for one more token")
    taken[free[-1 if last else 0]] = True
    return taken.nonzero().flatten()
