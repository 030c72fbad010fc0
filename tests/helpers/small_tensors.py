"""Small tensors for tests whose expected results are worked out by hand."""

from __future__ import annotations

import torch
from torch import Tensor


def unit_vectors(*degrees: float) -> Tensor:
    """Return n×2 unit vectors at these angles."""
    angle = torch.tensor(degrees).deg2rad()
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def merge_weights(total: int, *rows: dict[int, float]) -> Tensor:
    """Return merge weights with `total` columns from one {column: weight} per row."""
    merge = torch.zeros(len(rows), total)
    for row, columns in enumerate(rows):
        for column, weight in columns.items():
            merge[row, column] = weight
    return merge


def assert_weights_close(merge: Tensor | None, expected: Tensor) -> None:
    assert merge is not None
    torch.testing.assert_close(merge, expected)
