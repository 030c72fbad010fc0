"""Selections that other methods need: greedy MAP of a determinantal point process, and max-min distance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eadp.core import checks
from eadp.core.similarity import token_similarity


@dataclass(frozen=True)
class Picks:
    """indices: K, in the order of picking. gains: K, the marginal variance (DPP) or the distance (max-min) of each."""

    indices: Tensor
    gains: Tensor


def dpp(kernel: Tensor, keep: int, *, backend: str = "auto") -> Picks:
    """Greedy MAP of the DPP with this N×N kernel (Chen et al., 2018): each pick has the largest variance that the picks
    before it leave unexplained; the lowest index on a tie. Exactly `keep`, also where the kernel's rank is lower."""
    return _picks("kernel", kernel, keep, backend, "dpp_greedy", _dpp_torch)


def max_min(distance: Tensor, keep: int, *, backend: str = "auto") -> Picks:
    """Farthest-first on an N×N distance: first the token whose nearest neighbour is farthest, then always the one
    farthest from its nearest kept token; the lowest index on a tie."""
    return _picks("distance", distance, keep, backend, "max_min_greedy", _max_min_torch)


def dpp_by_quota(features: Tensor, relevance: Tensor, blocks: Sequence[slice], quotas: Sequence[int]) -> Picks:
    """Q_p tokens of each block p, block after block: greedy MAP with L_ij = r_i · cos(f_i, f_j) · r_j."""
    found = []
    for block, quota in zip(blocks, quotas, strict=True):
        cosine = 2 * token_similarity(features[block]) - 1
        weights = relevance[block].to(cosine)
        if quota:
            picks = dpp(weights[:, None] * cosine * weights, quota)
            found.append(Picks(picks.indices + block.start, picks.gains))
    return Picks(torch.cat([each.indices for each in found]), torch.cat([each.gains for each in found]))


def max_min_by_quota(features: Tensor, blocks: Sequence[slice], quotas: Sequence[int]) -> Picks:
    """Q_p tokens of each block p that are farthest apart by 1 − cosine, block after block."""
    found = []
    for block, quota in zip(blocks, quotas, strict=True):
        if quota:
            picks = max_min(2 * (1 - token_similarity(features[block])), quota)
            found.append(Picks(picks.indices + block.start, picks.gains))
    return Picks(torch.cat([each.indices for each in found]), torch.cat([each.gains for each in found]))


def _picks(
    what: str,
    matrix: Tensor,
    keep: int,
    backend: str,
    compiled: str,
    anywhere: Callable[[Tensor, int], Picks],
) -> Picks:
    checks.known("backend", backend, ("auto", "numba", "torch"))
    checks.count("keep", keep, checks.square(what, matrix))
    checks.finite(what, matrix)
    matrix = matrix.detach().to(torch.promote_types(matrix.dtype, torch.float32))
    if backend == "numba" or (backend == "auto" and matrix.device.type == "cpu"):
        from eadp.core import kernels

        order, gains = getattr(kernels, compiled)(np.ascontiguousarray(matrix.cpu().numpy()), keep)
        return Picks(torch.from_numpy(order).to(matrix.device), torch.from_numpy(gains).to(matrix.device))
    return anywhere(matrix if matrix.device.type == "mps" else matrix.double(), keep)


def _dpp_torch(kernel: Tensor, keep: int) -> Picks:
    """The same on any device, nothing read back inside the loop."""
    left = kernel.diagonal().clone()
    vanished = 1e-12 * left.max().clamp_min(0)
    factor = kernel.new_zeros(keep, len(kernel))
    order = torch.empty(keep, dtype=torch.long, device=kernel.device)
    gains = kernel.new_empty(keep)
    for step in range(keep):
        variance, pick = left.max(dim=0, keepdim=True)
        order[step : step + 1] = pick
        gains[step : step + 1] = variance.clamp_min(0)
        earlier = factor[:step]
        row = kernel.index_select(0, pick)[0] - earlier.index_select(1, pick)[:, 0] @ earlier
        explains = variance > vanished
        factor[step] = torch.where(explains, row / variance.where(explains, 1.0).sqrt(), 0.0)
        left -= factor[step] ** 2
        left.index_fill_(0, pick, -math.inf)
    return Picks(order, gains)


def _max_min_torch(distance: Tensor, keep: int) -> Picks:
    """The same on any device, nothing read back inside the loop."""
    order = torch.empty(keep, dtype=torch.long, device=distance.device)
    gains = distance.new_empty(keep)
    itself = torch.eye(len(distance), dtype=torch.bool, device=distance.device)
    gain, pick = distance.masked_fill(itself, math.inf).amin(dim=1).max(dim=0, keepdim=True)
    nearest = torch.full_like(distance[0], math.inf)
    for step in range(keep):
        if step:
            gain, pick = nearest.max(dim=0, keepdim=True)
        order[step : step + 1] = pick
        gains[step : step + 1] = gain
        torch.minimum(nearest, distance.index_select(0, pick)[0], out=nearest)
        nearest.index_fill_(0, pick, -math.inf)
    return Picks(order, gains)
