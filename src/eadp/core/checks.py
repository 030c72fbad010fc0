"""Checks of what users hand in: each failure is a sentence that names the value and what would be right."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def known(what: str, name: str, names: Iterable[str]) -> None:
    names = list(names)
    if name not in names:
        raise ValueError(f"unknown {what} {name!r}; known: {', '.join(names)}")


def positive(what: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{what} must be greater than 0, got {value}")


def share(what: str, value: float) -> None:
    """In (0, 1]."""
    if not 0 < value <= 1:
        raise ValueError(f"{what} must lie in (0, 1], got {value}")


def unit_interval(what: str, value: float) -> None:
    """In [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{what} must lie in [0, 1], got {value}")


def finite(what: str, values: Tensor) -> None:
    if values.isfinite().all():
        return
    where = tuple(torch.nonzero(~values.isfinite())[0].tolist())
    raise ValueError(f"{what} must be finite, but {what}{list(where)} is {values[where].item()}")


def count(what: str, value: int, most: int) -> None:
    """A whole number in 1 … most."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be a whole number of tokens, got {value!r}")
    if not 1 <= value <= most:
        raise ValueError(f"{what} must be at least 1 and at most the {most} tokens there are, got {value}")


def square(what: str, matrix: Tensor) -> int:
    """The N of an N×N matrix."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise ValueError(f"{what} must be a square N×N matrix with N ≥ 1, got shape {tuple(matrix.shape)}")
    return len(matrix)
