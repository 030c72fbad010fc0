"""Which positions the kept tokens have.

`keep`: each token stays where it was, its M-RoPE coordinates with it. `renumber`: tokens are renumbered without gaps.
Position ids are B×L, or axes×B×L where the model has M-RoPE (4 axes: the first counts text, 3: coordinates only).
"""

from __future__ import annotations

import torch
from torch import Tensor

from eadp.runtime.compact import Compaction


def logical(ids: Tensor | None, start: int | Tensor, rows: int, length: int, device: torch.device) -> Tensor:
    """The position ids as given, or as the model would count them itself; …×B×L."""
    if ids is None:
        ids = (torch.arange(length, device=device) + start)[None]
    return ids.expand(*ids.shape[:-2], rows, -1)


def lagging(ids: Tensor, shift: Tensor | None) -> Tensor:
    """The ids, …×B×L, moved back by `shift`, B."""
    return ids if shift is None else ids - shift.to(ids.device)[:, None]


def renumbered(
    ids: Tensor, plan: Compaction, shift: Tensor | None, valid: Tensor | None, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The ids of the kept tokens without gaps, B×P, and how far what follows them now lags behind, B.

    shift: B, how far earlier prefills on this cache already lag behind.
    valid: B×L, false for padding; None where there is none.
    start: B×1, from where they are numbered; None: from where the first token stood. To be given where the ids count
           every column, so that padding before the first token does not push it away.
    """
    ids = ids[-3:].amax(0) if ids.ndim == 3 else ids
    columns = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    valid = torch.ones_like(columns, dtype=torch.bool) if valid is None else valid.to(ids.device)
    if start is None:
        start = ids.gather(1, columns.masked_fill(~valid, ids.shape[1] - 1).amin(1, keepdim=True))
    last = ids.gather(1, columns.masked_fill(~valid, 0).amax(1, keepdim=True))
    count = torch.arange(plan.length, device=ids.device).expand(len(ids), -1)
    if plan.valid is not None:
        count = (plan.valid.to(ids.device).cumsum(1) - 1).clamp(min=0)
    packed = lagging(start, shift) + count
    return packed, (last - packed[:, -1:])[:, 0]


def counting(plan: Compaction, start: int, device: torch.device) -> Tensor:
    """B×P, an unbroken count: masks read gaps in position ids as the borders of packed sequences."""
    return (torch.arange(plan.length, device=device) + start).expand(len(plan.index), -1)
