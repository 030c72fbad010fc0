"""What the solvers of facility location return: for one block, and for many at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Solution(NamedTuple):
    """Greedy facility location on one block.

    Attributes:
        order: K, the picked tokens, in the order of picking.
        gains: K, the marginal gain of each pick.
        full_objective: F(all tokens).
        remaining_gain: Upper bound on what K more tokens could add to F.
        tie_loss: How much more the picks would have gained without the tie rules, summed over the picks.
    """

    order: Tensor
    gains: Tensor
    full_objective: float
    remaining_gain: float
    tie_loss: float


class BlockSolution(NamedTuple):
    """Greedy facility location on B blocks of at most N tokens, with at most K picks each; all on the device.

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

    def read(self, weights: Tensor, *along: Tensor) -> tuple[list[Solution], list[list[float]]]:
        """Read the picks of every block back, in one copy.

        Args:
            weights: B×N, the weights with which the blocks were solved.
            along: B numbers or booleans each, to be read back in the same copy.

        Returns:
            The picks of each block, and the numbers that were read along.
        """
        k = self.order.shape[1]
        ranked = self.remaining.sort(dim=1, descending=True).values.cumsum(dim=1)
        remaining = ranked.gather(1, self.counts.long()[:, None].clamp(1) - 1) + self.noise[:, None] * weights.sum(
            dim=1, keepdim=True
        )
        given = [self.full_objective, self.counts, self.tie_loss, *along]
        figures = torch.stack([each.to(ranked) for each in given], dim=1)
        rows = torch.cat([self.order.to(ranked), self.gains.to(ranked), remaining.to(ranked), figures], dim=1).cpu()
        solutions, others = [], []
        for row in rows:
            remaining_gain, full_objective, count, tie_loss, *other = row[2 * k :].tolist()
            order, gains = row[: int(count)].long(), row[k : k + int(count)]
            solutions.append(Solution(order, gains, full_objective, remaining_gain, tie_loss))
            others.append(other)
        return solutions, [list(each) for each in zip(*others, strict=True)]
