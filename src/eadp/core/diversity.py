"""Diversity-based selection: greedy MAP inference of a determinantal point process (DPP), and max-min distance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eadp.core import checks, ties
from eadp.core.similarity import token_cosine


@dataclass(frozen=True)
class OrderedPicks:
    """Tokens in the order in which they were picked.

    Attributes:
        indices: K, the picked tokens.
        gains: K, the gain of each pick: the marginal variance (DPP), the distance (max-min) or the score (top-k). 0
            where nothing was left to gain.
    """

    indices: Tensor
    gains: Tensor


def dpp(kernel: Tensor, keep: int, *, backend: str = "auto") -> OrderedPicks:
    """Pick tokens by greedy MAP inference of a DPP (Chen et al., 2018).

    Each pick has the largest variance that the earlier picks leave unexplained. Exactly `keep` tokens are picked, even
    if the kernel's rank is lower: once the picks explain every token up to rounding, the remaining tokens follow in the
    order of their indices. Ties go to the lowest index; see `core.ties`.

    Args:
        kernel: N×N, symmetric. Build it from `token_cosine`: unexplained variances are small differences, for which
            float32 cosines are too coarse.
        keep: Number of tokens to pick.
        backend: `numba`, `torch`, or `auto` (numba on the CPU, torch elsewhere).

    Returns:
        The picks and their marginal variances.
    """
    return _pick_greedily("kernel", kernel, keep, backend, "dpp_greedy", _dpp_torch, ties.ROUNDING_NOISE)


def max_min(distance: Tensor, keep: int, *, scale: float = 1.0, backend: str = "auto") -> OrderedPicks:
    """Pick tokens that are far apart: farthest-first traversal.

    The first pick is the token whose nearest neighbour is farthest away. Each further pick is the token farthest from
    its nearest picked token. Ties go to the lowest index; see `core.ties`.

    Args:
        distance: N×N.
        keep: Number of tokens to pick.
        scale: Magnitude of the numbers from which the distances were computed, to which rounding errors are relative. 1
            for distances 1 − cosine.
        backend: `numba`, `torch`, or `auto` (numba on the CPU, torch elsewhere).

    Returns:
        The picks and their distances.
    """
    checks.positive("scale", scale)
    noise = 2 * ties.ROUNDING_NOISE * scale
    return _pick_greedily("distance", distance, keep, backend, "max_min_greedy", _max_min_torch, noise)


def dpp_by_quota(features: Tensor, relevance: Tensor, blocks: Sequence[slice], quotas: Sequence[int]) -> OrderedPicks:
    """Pick Q_p tokens of each block p by `dpp`, with the kernel L_ij = r_i · cos(f_i, f_j) · r_j.

    Args:
        features: N×d.
        relevance: N, the relevance r of each token.
        blocks: The range of token indices of each block.
        quotas: Q_p, the number of tokens to pick in each block.

    Returns:
        The picks, block by block.
    """
    parts = []
    for block, quota in zip(blocks, quotas, strict=True):
        if quota:
            cosine = token_cosine(features[block])
            weights = relevance[block].to(cosine)
            picks = dpp(weights[:, None] * cosine * weights, quota)
            parts.append(OrderedPicks(picks.indices + block.start, picks.gains))
    return _concatenate(parts)


def max_min_by_quota(features: Tensor, blocks: Sequence[slice], quotas: Sequence[int]) -> OrderedPicks:
    """Pick Q_p tokens of each block p by `max_min`, with the distance 1 − cosine.

    Args:
        features: N×d.
        blocks: The range of token indices of each block.
        quotas: Q_p, the number of tokens to pick in each block.

    Returns:
        The picks, block by block.
    """
    parts = []
    for block, quota in zip(blocks, quotas, strict=True):
        if quota:
            picks = max_min(1 - token_cosine(features[block]), quota)
            parts.append(OrderedPicks(picks.indices + block.start, picks.gains))
    return _concatenate(parts)


def _concatenate(parts: Sequence[OrderedPicks]) -> OrderedPicks:
    return OrderedPicks(torch.cat([part.indices for part in parts]), torch.cat([part.gains for part in parts]))


def _pick_greedily(
    what: str,
    matrix: Tensor,
    keep: int,
    backend: str,
    kernel_name: str,
    torch_solver: Callable[[Tensor, int, float], OrderedPicks],
    noise: float,
) -> OrderedPicks:
    """Check the input and run the numba kernel of this name or the torch solver."""
    checks.known("backend", backend, ("auto", "numba", "torch"))
    checks.count("keep", keep, checks.square(what, matrix))
    checks.finite(what, matrix)
    matrix = matrix.detach().to(torch.promote_types(matrix.dtype, torch.float32))
    if backend == "numba" or (backend == "auto" and matrix.device.type == "cpu"):
        from eadp.core import kernels

        contiguous = np.ascontiguousarray(matrix.cpu().numpy())
        order, gains = getattr(kernels, kernel_name)(contiguous, keep, noise, ties.TIE_MARGIN)
        return OrderedPicks(torch.from_numpy(order).to(matrix.device), torch.from_numpy(gains).to(matrix.device))
    return torch_solver(matrix if matrix.device.type == "mps" else matrix.double(), keep, noise)


def _dpp_torch(kernel: Tensor, keep: int, noise: float) -> OrderedPicks:
    """`dpp` on any device, without synchronizing with the host inside the loop."""
    variance = kernel.diagonal()
    unexplained = variance.clone()
    factor = kernel.new_zeros(keep, len(kernel))
    order = torch.empty(keep, dtype=torch.long, device=kernel.device)
    gains = kernel.new_empty(keep)
    for step in range(keep):
        rounding = noise * (step + 1)
        # What rounding alone could leave counts as 0; −∞ marks tokens that were picked.
        is_real = (unexplained > 0) & (unexplained > rounding * variance)
        candidates = unexplained.where(is_real | unexplained.isneginf(), 0.0)
        best_gain, best = candidates.max(dim=0, keepdim=True)
        is_copy = kernel.index_select(0, best)[0] ** 2 >= (1 - 2 * noise) ** 2 * variance * variance[best]
        pick = ties.first_true(ties.find_ties(candidates, best_gain, rounding * variance[best], is_copy))
        gain = candidates[pick]
        order[step : step + 1] = pick
        gains[step : step + 1] = gain
        earlier = factor[:step]
        row = kernel.index_select(0, pick)[0] - earlier.index_select(1, pick)[:, 0] @ earlier
        factor[step] = torch.where(gain > 0, row / gain.where(gain > 0, 1.0).sqrt(), 0.0)
        unexplained -= factor[step] ** 2
        unexplained.index_fill_(0, pick, -math.inf)
    return OrderedPicks(order, gains)


def _max_min_torch(distance: Tensor, keep: int, noise: float) -> OrderedPicks:
    """`max_min` on any device, without synchronizing with the host inside the loop."""
    order = torch.empty(keep, dtype=torch.long, device=distance.device)
    gains = distance.new_empty(keep)
    is_self = torch.eye(len(distance), dtype=torch.bool, device=distance.device)
    nearest = distance.masked_fill(is_self, math.inf).amin(dim=1)
    for step in range(keep):
        candidates = nearest.where((nearest > noise) | nearest.isneginf(), 0.0)
        best_gain, best = candidates.max(dim=0, keepdim=True)
        is_copy = distance.index_select(0, best)[0] <= noise
        pick = ties.first_true(ties.find_ties(candidates, best_gain, noise, is_copy))
        order[step : step + 1] = pick
        gains[step : step + 1] = candidates[pick]
        if step == 0:
            nearest = torch.full_like(nearest, math.inf)
        torch.minimum(nearest, distance.index_select(0, pick)[0], out=nearest)
        nearest.index_fill_(0, pick, -math.inf)
    return OrderedPicks(order, gains)
