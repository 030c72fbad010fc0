"""How well a map tells the inside of something from the outside."""

from __future__ import annotations

import torch
from torch import Tensor


def rank_auc(scores: Tensor, inside: Tensor, outside: Tensor) -> float:
    """Compute the chance that a cell inside scores higher than one outside; equal scores count half.

    Args:
        scores: N.
        inside: N booleans.
        outside: N booleans.
    """
    ordered, asked = scores[outside].sort().values, scores[inside]
    below, not_above = (torch.searchsorted(ordered, asked, right=right) for right in (False, True))
    return ((below + not_above).double().mean() / (2 * len(ordered))).item()
