"""When a pick would be decided by rounding, and what decides instead. docs/methods/selection.md has the rules.

A gain is made of cosines, and those of float32 features: the same image on another CPU, with other threads or in
another batch has other last bits. Greedy selections therefore go by two rules, the same in every backend:

1. A gain that rounding alone could make is 0. Once all gains are 0, the lowest index that is left is next.
2. The lowest index wins among gains that differ from the best by less than `TIE` of it, and among copies of the best
   token whose gains differ by no more than rounding.
"""

from __future__ import annotations

from torch import Tensor

NOISE = 2.0**-20
"""What rounding can make of a similarity of 1: eight steps of float32. Measured: at most 4e-7, for 16 to 4096 channels
that were each moved by one step first."""

TIE = 2.0**-18
"""Gains closer to the best than this share of it tie: what differs by a hundred-thousandth is still a decision."""


def tied(gains: Tensor, top: Tensor, rounding: Tensor | float, alike: Tensor) -> Tensor:
    """N, which gains tie with the best, `top`. rounding: what it can have made of it; alike: N, copies of the best."""
    return (gains >= top - TIE * top) | (alike & (gains >= top - rounding))


def first(true: Tensor) -> Tensor:
    """1, the lowest index at which a vector is true; it stays on the device."""
    return true.int().argmax(dim=0, keepdim=True)
