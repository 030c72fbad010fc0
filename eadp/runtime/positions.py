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


def renumbered(ids: Tensor, plan: Compaction, shift: Tensor | None, counted: bool) -> tuple[Tensor, Tensor]:
    """The ids of the kept tokens without gaps, B×P, and how far they now lag behind, B.

    They start where the first kept token stood, less what earlier prefills on this cache already lag behind.
    counted: the ids count every column, so that padding before the first kept token must not push it away.
    """
    ids = ids[-3:].amax(0) if ids.ndim == 3 else ids
    device = ids.device
    first = ids[:, :1] if counted else ids.gather(1, plan.first.to(device)[:, None])
    if shift is not None:
        first = first - shift.to(device)[:, None]
    count = torch.arange(plan.length, device=device).expand(len(ids), -1)
    if plan.valid is not None:
        count = (plan.valid.to(device).cumsum(1) - 1).clamp(min=0)
    packed = first + count
    return packed, ids.gather(1, plan.last.to(device)[:, None])[:, 0] - packed[:, -1]


def counting(plan: Compaction, start: int, device: torch.device) -> Tensor:
    """B×P, an unbroken count: masks read gaps in position ids as the borders of packed sequences."""
    return (torch.arange(plan.length, device=device) + start).expand(len(plan.index), -1)
