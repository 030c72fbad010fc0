"""How a figure is told: a median and its 95 % interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Figure:
    """low, high: the 95 % interval of the median, by resampling the rounds."""

    median: float
    low: float
    high: float

    def __format__(self, kind: str) -> str:
        return f"{self.median:{kind}} ({self.low:{kind}}–{self.high:{kind}})"


def figure(values: Sequence[float], seed: int = 0, draws: int = 2000) -> Figure:
    found = np.asarray(values, float)
    if not len(found):
        raise ValueError("a median needs at least one value")
    picks = np.random.default_rng(seed).integers(len(found), size=(draws, len(found)))
    low, high = np.quantile(np.median(found[picks], axis=1), [0.025, 0.975])
    return Figure(float(np.median(found)), float(low), float(high))
