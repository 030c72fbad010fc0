"""Small tensors for answers that are worked out by hand."""

from __future__ import annotations

import torch
from torch import Tensor


def directions(*degrees: float) -> Tensor:
    angle = torch.tensor(degrees).deg2rad()
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def rows(total: int, *weights: dict[int, float]) -> Tensor:
    """Merge weights by column."""
    merge = torch.zeros(len(weights), total)
    for row, columns in enumerate(weights):
        for column, weight in columns.items():
            merge[row, column] = weight
    return merge


def same(merge: Tensor | None, expected: Tensor) -> None:
    assert merge is not None
    torch.testing.assert_close(merge, expected)
