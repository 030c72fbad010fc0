"""The greedy loops that others publish, as the methods and functions that ours are measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens, allocate
from eadp.methods import EADP


def published_loop(similarity: Tensor, weights: Tensor, keep: int) -> Tensor:
    """Run the dense greedy algorithm as in the release of EADP, with temporaries of the matrix's size per pick.

    Args:
        similarity: N×N, or B×N×N for all blocks in one loop.
        weights: N, or B×N.
        keep: K, the number of picks of each block.

    Returns:
        The picks in order: K, or B×K.
    """
    covered = torch.zeros_like(weights)
    picked = torch.zeros_like(weights, dtype=torch.bool)
    order = []
    for _ in range(keep):
        gains = (weights[..., None, :] * torch.relu(similarity - covered[..., None, :])).sum(dim=-1)
        pick = gains.masked_fill(picked, -torch.inf).argmax(dim=-1, keepdim=True)
        picked = picked.scatter(-1, pick, True)
        covered = torch.maximum(covered, similarity.take_along_dim(pick[..., None], dim=-2).squeeze(-2))
        order.append(pick)
    return torch.cat(order, dim=-1)


def loop_that_reads_back(similarity: Tensor, weights: Tensor, keep: int) -> Tensor:
    """Run the same algorithm in the style of MMTok: one block after the other, and the host reads each pick.

    Args:
        similarity: N×N, or B×N×N.
        weights: N, or B×N.
        keep: K, the number of picks of each block.

    Returns:
        The picks in order: K, or B×K.
    """
    if similarity.ndim == 3:
        parts = zip(similarity, weights, strict=True)
        return torch.stack([loop_that_reads_back(matrix, weight, keep) for matrix, weight in parts])
    covered, chosen = torch.zeros_like(weights), list[int]()
    for _ in range(keep):
        gains = torch.relu(similarity - covered) @ weights
        gains[chosen] = -torch.inf
        chosen.append(int(gains.argmax().item()))
        covered = torch.maximum(covered, similarity[chosen[-1]])
    return torch.tensor(chosen, device=similarity.device)


@dataclass(frozen=True)
class PublishedLoop(EADP):
    """EADP with the greedy loop of its release: the same maps, then one dense loop per block."""

    name: ClassVar[str] = "published loop"

    @staticmethod
    def loop(similarity: Tensor, weights: Tensor, keep: int) -> Tensor:
        """Pick `keep` tokens of one block."""
        return published_loop(similarity, weights, keep)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        weights = self.relevance(tokens, text).polarized
        assert weights is not None  # `relevance` of EADP always polarizes.
        maps = [weights[block].view(grid) for block, grid in zip(tokens.blocks, tokens.grids, strict=True)]
        quotas = allocate(maps, self.count_to_keep(len(tokens)), self.allocation, self.rounding, tokens.layout)
        picks = []
        for block, quota in zip(tokens.blocks, quotas, strict=True):
            unit = torch.nn.functional.normalize(tokens.features[block].float(), dim=1)
            picks.append(block.start + self.loop((1 + unit @ unit.T) / 2, weights[block], quota).sort().values)
        return Selection(torch.cat(picks), len(tokens), self.name)


@dataclass(frozen=True)
class LoopThatReadsBack(PublishedLoop):
    """EADP with a greedy loop in the style of MMTok, in which the host reads each pick."""

    name: ClassVar[str] = "loop that reads back"

    @staticmethod
    def loop(similarity: Tensor, weights: Tensor, keep: int) -> Tensor:
        """Pick `keep` tokens of one block."""
        return loop_that_reads_back(similarity, weights, keep)
