"""The positions of kept tokens.

"keep": each token keeps its position, including its M-RoPE coordinates. "renumber": positions have no gaps. Position
ids are B×L, or axes×B×L where the model has M-RoPE (4 axes: the first counts text; 3 axes: only coordinates).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eadp.runtime.compact import Compaction


def logical_positions(ids: Tensor | None, start: int | Tensor, rows: int, length: int, device: torch.device) -> Tensor:
    """The position ids as given, or as the model would count them from `start`; …×B×L."""
    if ids is None:
        counted = torch.arange(length, device=device)
        ids = (counted + start if isinstance(start, Tensor) or start else counted)[None]
    return ids.expand(*ids.shape[:-2], rows, -1)


def move_back(ids: Tensor, shift: Tensor | None) -> Tensor:
    """Subtract a shift per row, B, from position ids, …×B×L."""
    return ids if shift is None else ids - shift.to(ids.device)[:, None]


def positions_behind(
    ids: Tensor | None, start: int | Tensor, rows: int, length: int, shift: Tensor | None, device: torch.device
) -> Tensor:
    """The positions of a call that continues: `logical_positions`, moved back by a shift per row; …×B×L."""
    if ids is None and length == 1 and shift is not None:
        # The same for one token, in one step.
        return (start - shift.to(device))[:, None]
    return move_back(logical_positions(ids, start, rows, length, device), shift)


def renumber_positions(
    ids: Tensor,
    plan: Compaction,
    counts: Sequence[int],
    shift: Tensor | None,
    valid: Tensor | None,
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Number the kept tokens without gaps.

    Args:
        ids: …×B×L, the logical position ids.
        plan: Which columns stay.
        counts: B, how many of each row.
        shift: B, how far earlier prefills on this cache are already behind the logical positions.
        valid: B×L, on the CPU, false for padding; None where there is none.
        start: B×1, the first number. None: the position of the first token. It must be given where the ids count
            every column, so that padding before the first token does not push it away.

    Returns:
        B×P, the new positions, and B, how far later tokens are behind the logical positions.
    """
    ids = ids[-3:].amax(0) if ids.ndim == 3 else ids
    first, last = _ends(valid, ids)
    if start is None:
        start = _take_one(ids, first)
    padding = plan.length - torch.tensor(counts)[:, None]
    count = (torch.arange(plan.length) - padding).clamp(min=0).to(ids.device)
    packed = move_back(start, shift) + count
    return packed, (_take_one(ids, last) - packed[:, -1:])[:, 0]


def _ends(valid: Tensor | None, ids: Tensor) -> tuple[list[int], list[int]]:
    """The first and the last column of each row that are not padding."""
    rows, length = ids.shape
    if valid is None:
        return [0] * rows, [length - 1] * rows
    columns = torch.arange(length).expand_as(valid)
    first = columns.masked_fill(~valid, length - 1).amin(1).tolist()
    return first, columns.masked_fill(~valid, 0).amax(1).tolist()


def _take_one(ids: Tensor, columns: Sequence[int]) -> Tensor:
    """B×1, one entry of each row of B×L."""
    if len(set(columns)) == 1:
        return ids[:, columns[0], None]
    return ids.gather(1, torch.tensor(columns)[:, None].to(ids.device))


def count_columns(plan: Compaction, start: int, device: torch.device) -> Tensor:
    """B×P, a count without gaps from `start`: masks read gaps in position ids as borders of packed sequences."""
    return torch.arange(start, start + plan.length, device=device).expand(len(plan.index), -1)
