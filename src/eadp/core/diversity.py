"""Selections that other methods need: greedy MAP of a determinantal point process, and max-min distance."""

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
class Picks:
    """indices: K, in the order of picking. gains: K, the marginal variance (DPP) or the distance (max-min) of each; 0
    where nothing was left to gain."""

    indices: Tensor
    gains: Tensor


def dpp(kernel: Tensor, keep: int, *, backend: str = "auto") -> Picks:
    """Greedy MAP of the DPP with this N×N kernel (Chen et al., 2018): each pick has the largest variance that the picks
    before it leave unexplained. Exactly `keep`, also where the kernel's rank is lower: once the picks explain every
    token up to rounding, the lowest indices that are left follow. Ties go to the lowest index; see `core.ties`.

    Make the kernel of `token_cosine`: what is left of a variance is a small difference, which float32 would round.
    """
    return _picks("kernel", kernel, keep, backend, "dpp_greedy", _dpp_torch, ties.NOISE)


def max_min(distance: Tensor, keep: int, *, scale: float = 1.0, backend: str = "auto") -> Picks:
    """Farthest-first on an N×N distance: first the token whose nearest neighbour is farthest, then always the one
    farthest from its nearest kept token. Ties go to the lowest index; see `core.ties`.

    scale: the size of the numbers whose difference a distance is, which rounding is relative to. 1 for 1 − cosine.
    """
    checks.positive("scale", scale)
    return _picks("distance", distance, keep, backend, "max_min_greedy", _max_min_torch, 2 * ties.NOISE * scale)


def dpp_by_quota(features: Tensor, relevance: Tensor, blocks: Sequence[slice], quotas: Sequence[int]) -> Picks:
    """Q_p tokens of each block p, block after block: greedy MAP with L_ij = r_i · cos(f_i, f_j) · r_j."""
    found = []
    for block, quota in zip(blocks, quotas, strict=True):
        if quota:
            cosine = token_cosine(features[block])
            weights = relevance[block].to(cosine)
            picks = dpp(weights[:, None] * cosine * weights, quota)
            found.append(Picks(picks.indices + block.start, picks.gains))
    return Picks(torch.cat([each.indices for each in found]), torch.cat([each.gains for each in found]))


def max_min_by_quota(features: Tensor, blocks: Sequence[slice], quotas: Sequence[int]) -> Picks:
    """Q_p tokens of each block p that are farthest apart by 1 − cosine, block after block."""
    found = []
    for block, quota in zip(blocks, quotas, strict=True):
        if quota:
            picks = max_min(1 - token_cosine(features[block]), quota)
            found.append(Picks(picks.indices + block.start, picks.gains))
    return Picks(torch.cat([each.indices for each in found]), torch.cat([each.gains for each in found]))


def _picks(
    what: str,
    matrix: Tensor,
    keep: int,
    backend: str,
    compiled: str,
    anywhere: Callable[[Tensor, int, float], Picks],
    noise: float,
) -> Picks:
    checks.known("backend", backend, ("auto", "numba", "torch"))
    checks.count("keep", keep, checks.square(what, matrix))
    checks.finite(what, matrix)
    matrix = matrix.detach().to(torch.promote_types(matrix.dtype, torch.float32))
    if backend == "numba" or (backend == "auto" and matrix.device.type == "cpu"):
        from eadp.core import kernels

        contiguous = np.ascontiguousarray(matrix.cpu().numpy())
        order, gains = getattr(kernels, compiled)(contiguous, keep, noise, ties.TIE)
        return Picks(torch.from_numpy(order).to(matrix.device), torch.from_numpy(gains).to(matrix.device))
    return anywhere(matrix if matrix.device.type == "mps" else matrix.double(), keep, noise)


def _dpp_torch(kernel: Tensor, keep: int, noise: float) -> Picks:
    """The same on any device, nothing read back inside the loop."""
    own = kernel.diagonal()
    left = own.clone()
    factor = kernel.new_zeros(keep, len(kernel))
    order = torch.empty(keep, dtype=torch.long, device=kernel.device)
    gains = kernel.new_empty(keep)
    for step in range(keep):
        rounding = noise * (step + 1)
        # Of tokens that are explained nothing is left; −∞ stays, it marks those that are gone.
        gain = left.where((left > 0) & (left > rounding * own) | left.isneginf(), 0.0)
        top, best = gain.max(dim=0, keepdim=True)
        beside = kernel.index_select(0, best)[0]
        alike = beside**2 >= (1 - 2 * noise) ** 2 * own * own[best]
        pick = ties.first(ties.tied(gain, top, rounding * own[best], alike))
        variance = gain[pick]
        order[step : step + 1] = pick
        gains[step : step + 1] = variance
        earlier = factor[:step]
        row = kernel.index_select(0, pick)[0] - earlier.index_select(1, pick)[:, 0] @ earlier
        explains = variance > 0
        factor[step] = torch.where(explains, row / variance.where(explains, 1.0).sqrt(), 0.0)
        left -= factor[step] ** 2
        left.index_fill_(0, pick, -math.inf)
    return Picks(order, gains)


def _max_min_torch(distance: Tensor, keep: int, noise: float) -> Picks:
    """The same on any device, nothing read back inside the loop."""
    order = torch.empty(keep, dtype=torch.long, device=distance.device)
    gains = distance.new_empty(keep)
    itself = torch.eye(len(distance), dtype=torch.bool, device=distance.device)
    nearest = distance.masked_fill(itself, math.inf).amin(dim=1)
    for step in range(keep):
        gain = nearest.where((nearest > noise) | nearest.isneginf(), 0.0)
        top, best = gain.max(dim=0, keepdim=True)
        pick = ties.first(ties.tied(gain, top, noise, distance.index_select(0, best)[0] <= noise))
        order[step : step + 1] = pick
        gains[step : step + 1] = gain[pick]
        if step == 0:
            nearest = torch.full_like(nearest, math.inf)
        torch.minimum(nearest, distance.index_select(0, pick)[0], out=nearest)
        nearest.index_fill_(0, pick, -math.inf)
    return Picks(order, gains)
