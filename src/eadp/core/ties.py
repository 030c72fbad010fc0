"""Tie rules that keep rounding errors from deciding which token a greedy selection picks.

Gains are computed from cosines of float32 features. The last bits of these depend on the CPU, the number of threads and
the batch. All greedy selections, in every backend, therefore follow two rules; docs/methods/selection.md explains them.

1. A gain that could be the result of rounding alone counts as 0. Once all gains are 0, the remaining tokens follow in
   the order of their indices.
2. The lowest index wins a tie. A gain ties with the best if it is smaller by at most `TIE_MARGIN` of the best. The
   gain of a copy of the best token also ties if it is smaller by no more than rounding.
"""

from __future__ import annotations

from torch import Tensor

ROUNDING_NOISE = 2.0**-20
"""Largest rounding error assumed for a similarity of 1: eight float32 roundings. The largest error measured, with 16 to
4096 channels that were each changed by one float32 rounding, was 4e-7."""

TIE_MARGIN = 2.0**-18
"""Gains tie with the best if they are smaller by at most this share of it. A difference of 1e-5 still decides."""

WORD_TIE_MARGIN = 2.0**-14
"""Words tie with the last one that the filter keeps if their dispersion is higher by at most this share. A word that a
question has twice has two dispersions that differ by rounding: errors of cosines, divided by the temperature."""


def find_ties(gains: Tensor, best_gain: Tensor, rounding: Tensor | float, is_copy: Tensor) -> Tensor:
    """Find the gains that tie with the best gain.

    Args:
        gains: N.
        best_gain: The largest of them.
        rounding: How much rounding can change the best gain.
        is_copy: N, true for tokens that are copies of the best token.

    Returns:
        N, true where the gain ties.
    """
    return (gains >= best_gain - TIE_MARGIN * best_gain) | (is_copy & (gains >= best_gain - rounding))


def first_true(mask: Tensor) -> Tensor:
    """Return the lowest index at which a mask is true, as a tensor of one element that stays on the device."""
    return mask.int().argmax(dim=0, keepdim=True)
