"""Greedy selection of all blocks in one loop of torch operations, for devices without Triton (XPU, MPS, NPU).

Each step picks one token of every block, so the number of operations does not depend on the number of blocks. Nothing
is read back to the host. Gains are computed again at each step, a slice of the candidates at a time, so that the
scratch memory stays below the size of the matrix.

Sums are in float64. Where a device has no float64, or a slow one, they are compensated sums in float32: each product is
split into a leading part, whose sum is exact, and the rest. The sums are kept apart, and gains are compared by both.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from eadp.core import ties
from eadp.core.backends import has_fast_float64
from eadp.core.similarity import highest_precision
from eadp.core.solution import BlockSolution

SCRATCH_SHARE = 0.5
"""Size of the scratch memory as a share of the similarity matrices."""

CHECK_INTERVAL = 64
"""Picks between two checks whether every block has reached its coverage. A check waits for the device."""


def default_precision(device: torch.device) -> torch.dtype:
    """Return float64, or float32 for compensated sums where the device has no float64 or computes it slowly."""
    return highest_precision(device) if has_fast_float64(device) else torch.float32


class _Gains(NamedTuple):
    """Gains in float64, or as the unevaluated sum of two float32 numbers."""

    high: Tensor
    low: Tensor | None

    @property
    def value(self) -> Tensor:
        return self.high if self.low is None else self.high + self.low

    def below(self, which: Tensor) -> Tensor:
        """Return how much smaller each gain is than the one at index `which` (B×1), for each block."""
        below = self.high.gather(1, which) - self.high
        return below if self.low is None else below + (self.low.gather(1, which) - self.low)

    def best(self, is_out: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index of the largest gain (B×1), and how much smaller each gain is; ∞ for tokens that are out."""
        best = self.value.masked_fill(is_out, -math.inf).argmax(dim=1, keepdim=True)
        if self.low is not None:  # The sum of both is rounded, so another gain may be larger.
            best = self.below(best).masked_fill_(is_out, math.inf).argmin(dim=1, keepdim=True)
        return best, self.below(best).masked_fill_(is_out, math.inf)


class _GainSums:
    """Computes gain(u) = Σ_j w_j · max(0, S_uj − C_j) of all candidates, a slice of them at a time."""

    def __init__(self, matrices: Tensor, weights: Tensor, noise: Tensor, largest_term: Tensor) -> None:
        blocks, n, _ = matrices.shape
        self.matrices, self.weights, self.noise = matrices, weights, noise
        self.is_exact = weights.dtype == torch.float64
        buffers = 1 if self.is_exact else 2
        self.rows = math.ceil(SCRATCH_SHARE * n * matrices.element_size() / (buffers * weights.element_size()))
        self.scratch = weights.new_empty(buffers, blocks, self.rows, n)
        self.largest_term = largest_term

    def compute(self, covered: Tensor) -> _Gains:
        """Return the gains (B×N): 0 for a candidate that raises no column by more than rounding."""
        high, low, rises = [], [], []
        largest_terms = []
        for start in range(0, self.matrices.shape[1], self.rows):
            part = self.matrices[:, start : start + self.rows]
            scratch = self.scratch[:, :, : part.shape[1]]
            rise = torch.sub(part, covered[:, None], out=scratch[0]).clamp_min_(0)
            rises.append(rise.amax(dim=2))
            if self.is_exact:
                high.append(torch.bmm(rise, self.weights[:, :, None])[:, :, 0])
                continue
            terms = rise.mul_(self.weights[:, None])
            largest_terms.append(terms.amax(dim=(1, 2)))
            # Adding and subtracting a large power of two leaves the leading bits, few enough for an exact sum.
            split = self._splitter()[:, None, None]
            leading = torch.add(terms, split, out=scratch[1]).sub_(split)
            high.append(leading.sum(dim=2))
            low.append(terms.sub_(leading).sum(dim=2))
        if largest_terms:
            # Terms only fall, so this also bounds those of the next step.
            self.largest_term = torch.stack(largest_terms).amax(dim=0)
        is_real = torch.cat(rises, dim=1) > self.noise
        rest = torch.cat(low, dim=1).where(is_real, 0.0) if low else None
        return _Gains(torch.cat(high, dim=1).where(is_real, 0.0), rest)

    def _splitter(self) -> Tensor:
        """The smallest power of two that no sum of N terms exceeds."""
        bound = (self.largest_term * self.matrices.shape[1]).clamp_min(torch.finfo(torch.float32).tiny)
        return torch.exp2(torch.log2(bound).ceil() + 1)


def solve_facility(
    matrices: Tensor,
    weights: Tensor,
    sizes: Tensor,
    limits: Tensor,
    goal: Tensor | None,
    most: int,
    *,
    precision: torch.dtype | None = None,
) -> BlockSolution:
    """Maximize the facility location objective of every block greedily.

    Args:
        matrices: B×N×N, the similarities of each block; 0 beyond the block's size.
        weights: B×N.
        sizes: B, the number of tokens of each block.
        limits: B, the maximum number of picks of each block.
        goal: B×2 numbers (a, b): a block is done once F reaches a · F(all tokens) + b · F(first pick), or nothing is
            left to gain. None to make `limits` picks, whatever they gain.
        most: The largest of the limits.
        precision: float64, or float32 for compensated sums. None for what is fast on the device. Input in float64 is
            always summed in float64.

    Returns:
        The picks of each block.
    """
    if torch.float64 in (matrices.dtype, weights.dtype):
        precision = torch.float64
    precision = default_precision(matrices.device) if precision is None else precision
    blocks, n, _ = matrices.shape
    is_token = torch.arange(n, device=matrices.device) < sizes[:, None]
    weights = weights.to(precision).where(is_token, 0.0)
    lowest, highest = torch.aminmax(matrices, dim=1)
    full = (weights * highest).sum(dim=1)
    is_valid = (lowest >= 0).all(dim=1) & (weights >= 0).all(dim=1) & (full > 0) & (full < math.inf)
    noise = ties.ROUNDING_NOISE * highest.to(precision).where(weights > 0, 0.0).amax(dim=1)
    covered = torch.zeros_like(weights).masked_fill_(~(weights > 0), math.inf)
    sums = _GainSums(matrices, weights, noise[:, None], (weights * highest).amax(dim=1))

    is_out = ~is_token
    order = torch.zeros(blocks, most, dtype=torch.long, device=weights.device)
    gains = weights.new_zeros(blocks, most)
    count = torch.zeros(blocks, dtype=torch.long, device=weights.device)
    tie_loss, reached, enough = (weights.new_zeros(blocks) for _ in range(3))
    block_index = torch.arange(blocks, device=weights.device)
    for step in range(most):
        candidates = sums.compute(covered)
        best, below = candidates.best(is_out)
        best_gain = candidates.value.gather(1, best)
        best_row = matrices[block_index, best[:, 0]]
        raised = (weights * (best_row - covered > noise[:, None])).sum(dim=1, keepdim=True)
        is_copy = best_row >= best_row.gather(1, best) - noise[:, None]
        tied = (below <= ties.TIE_MARGIN * best_gain) | (is_copy & (below <= noise[:, None] * raised))
        pick = tied.int().argmax(dim=1)
        row = matrices[block_index, pick].to(weights)
        gain = ((row - covered).clamp_min_(0) * weights).sum(dim=1).where(best_gain[:, 0] > 0, 0.0)
        is_active = step < limits
        if goal is not None:
            is_active = is_active & (best_gain[:, 0] > 0) & ((reached < enough) if step else True)
        order[:, step] = pick
        gains[:, step] = gain.where(is_active, 0.0)
        count += is_active
        reached += gains[:, step]
        tie_loss += (best_gain[:, 0] - gain).clamp_min_(0).where(is_active, 0.0)
        # A block that is done stays as it is.
        is_out.scatter_(1, pick[:, None], is_active[:, None] | is_out.gather(1, pick[:, None]))
        covered = torch.where(is_active[:, None], torch.maximum(covered, row), covered)
        if goal is not None:
            if step == 0:
                enough = goal[:, 0] * full + goal[:, 1] * gains[:, 0]
            if step % CHECK_INTERVAL == CHECK_INTERVAL - 1 and not is_active.any():
                break
    remaining = sums.compute(covered).value.masked_fill(is_out, 0.0)
    return BlockSolution(order, gains, remaining, full.where(is_valid, math.nan), count, tie_loss, noise)


def solve_dpp(matrices: Tensor, sizes: Tensor, limits: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Pick tokens of every block by greedy MAP inference of a DPP.

    Args:
        matrices: B×N×N, the kernels of the blocks.
        sizes: B, the number of tokens of each block.
        limits: B, the number of picks of each block; not used, since later picks do not change earlier ones.
        most: The largest of the limits.

    Returns:
        The picks in order, B×K, and their unexplained variances. Undefined beyond a block's limit.
    """
    matrices = matrices.to(highest_precision(matrices.device))
    blocks, n, _ = matrices.shape
    is_token = torch.arange(n, device=matrices.device) < sizes[:, None]
    block_index = torch.arange(blocks, device=matrices.device)
    variance = matrices.diagonal(dim1=1, dim2=2)
    unexplained = variance.masked_fill(~is_token, -math.inf)
    factor = matrices.new_zeros(blocks, most, n)
    order = torch.zeros(blocks, most, dtype=torch.long, device=matrices.device)
    gains = matrices.new_zeros(blocks, most)
    for step in range(most):
        rounding = ties.ROUNDING_NOISE * (step + 1)
        # What rounding alone could leave counts as 0; −∞ marks tokens that were picked.
        is_real = (unexplained > 0) & (unexplained > rounding * variance)
        candidates = unexplained.where(is_real | unexplained.isneginf(), 0.0)
        best_gain, best = candidates.max(dim=1, keepdim=True)
        own = variance.gather(1, best)
        is_copy = matrices[block_index, best[:, 0]] ** 2 >= (1 - 2 * ties.ROUNDING_NOISE) ** 2 * variance * own
        pick = _first_tied(candidates, best_gain, rounding * own, is_copy)
        gain = candidates.gather(1, pick)
        order[:, step : step + 1] = pick
        gains[:, step : step + 1] = gain
        row = matrices[block_index, pick[:, 0]]
        if step:
            earlier = factor[:, :step]
            shares = earlier.gather(2, pick[:, None].expand(-1, step, -1)).mT
            row = row - torch.bmm(shares, earlier)[:, 0]
        row = torch.where(gain > 0, row / gain.where(gain > 0, 1.0).sqrt(), 0.0)
        factor[:, step] = row
        unexplained = (unexplained - row**2).scatter(1, pick, -math.inf)
    return order, gains


def solve_max_min(matrices: Tensor, sizes: Tensor, limits: Tensor, most: int, noise: float) -> tuple[Tensor, Tensor]:
    """Pick tokens of every block that are far apart.

    Args:
        matrices: B×N×N, the distances within each block.
        sizes: B, the number of tokens of each block.
        limits: B, the number of picks of each block; not used, since later picks do not change earlier ones.
        most: The largest of the limits.
        noise: How much rounding can change a distance.

    Returns:
        The picks in order, B×K, and their distances. Undefined beyond a block's limit.
    """
    matrices = matrices.to(highest_precision(matrices.device))
    blocks, n, _ = matrices.shape
    is_token = torch.arange(n, device=matrices.device) < sizes[:, None]
    block_index = torch.arange(blocks, device=matrices.device)
    is_neighbour = is_token[:, None] & ~torch.eye(n, dtype=torch.bool, device=matrices.device)
    nearest = matrices.where(is_neighbour, math.inf).amin(dim=2)
    order = torch.zeros(blocks, most, dtype=torch.long, device=matrices.device)
    gains = matrices.new_zeros(blocks, most)
    for step in range(most):
        nearest = nearest.where(is_token, -math.inf)
        candidates = nearest.where((nearest > noise) | nearest.isneginf(), 0.0)
        best_gain, best = candidates.max(dim=1, keepdim=True)
        is_copy = matrices[block_index, best[:, 0]] <= noise
        pick = _first_tied(candidates, best_gain, noise, is_copy)
        order[:, step : step + 1] = pick
        gains[:, step : step + 1] = candidates.gather(1, pick)
        row = matrices[block_index, pick[:, 0]]
        nearest = (torch.minimum(nearest, row) if step else row).scatter(1, pick, -math.inf)
    return order, gains


def _first_tied(candidates: Tensor, best_gain: Tensor, rounding: Tensor | float, is_copy: Tensor) -> Tensor:
    """Return the lowest index of each block that ties with its best candidate, B×1."""
    return ties.find_ties(candidates, best_gain, rounding, is_copy).int().argmax(dim=1, keepdim=True)
