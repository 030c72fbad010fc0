"""What a solver that works on many blocks at once returns. Everything stays on the device."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class BlockSolution(NamedTuple):
    """Greedy facility location on B blocks of at most N tokens, with at most K picks each.

    Attributes:
        order: B×K, the picked tokens of each block, in the order of picking. Undefined from `counts` on.
        gains: B×K, the marginal gain of each pick. 0 from `counts` on.
        remaining: B×N, the gains after the last pick. Picked tokens have 0.
        full_objective: B, F(all tokens). NaN where a similarity or weight of the block is negative or not finite, or if
            F(all tokens) is 0; the picks are then meaningless.
        counts: B, the number of picks.
        tie_loss: B, how much more the picks would have gained without the tie rules.
        noise: B, how much rounding can change a similarity.
    """

    order: Tensor
    gains: Tensor
    remaining: Tensor
    full_objective: Tensor
    counts: Tensor
    tie_loss: Tensor
    noise: Tensor
