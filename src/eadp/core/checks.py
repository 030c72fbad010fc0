"""Checks of user input. Each error names the value that was given and says what would be valid."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def known(what: str, name: str, names: Iterable[str]) -> None:
    """Raise ValueError unless `name` is one of `names`."""
    names = list(names)
    if name not in names:
        raise ValueError(f"unknown {what} {name!r}; known: {', '.join(names)}")


def positive(what: str, value: float) -> None:
    """Raise ValueError unless `value` is greater than 0."""
    if not value > 0:
        raise ValueError(f"{what} must be greater than 0, got {value}")


def share(what: str, value: float) -> None:
    """Raise ValueError unless `value` lies in (0, 1]."""
    if not 0 < value <= 1:
        raise ValueError(f"{what} must lie in (0, 1], got {value}")


def unit_interval(what: str, value: float) -> None:
    """Raise ValueError unless `value` lies in [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{what} must lie in [0, 1], got {value}")


def finite(what: str, values: Tensor) -> None:
    """Raise ValueError with the first entry that is NaN or infinite, if there is one."""
    if values.isfinite().all():
        return
    where = tuple(torch.nonzero(~values.isfinite())[0].tolist())
    raise ValueError(f"{what} must be finite, but {what}{list(where)} is {values[where].item()}")


def count(what: str, value: int, most: int) -> None:
    """Raise TypeError or ValueError unless `value` is a whole number from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be a whole number of tokens, got {value!r}")
    if not 1 <= value <= most:
        raise ValueError(f"{what} must be at least 1 and at most the {most} tokens available, got {value}")


def square(what: str, matrix: Tensor) -> int:
    """Raise ValueError unless the matrix is N×N with N ≥ 1; return N."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise ValueError(f"{what} must be a square N×N matrix with N ≥ 1, got shape {tuple(matrix.shape)}")
    return len(matrix)
