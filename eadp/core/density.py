"""Clustering by density peaks: centres are dense points far from any denser one."""

from __future__ import annotations

import torch
from torch import Tensor

from eadp.core.ranking import ranked

NOISE = 1e-6


def density_peaks(points: Tensor, clusters: int, neighbours: int = 5, seed: int = 0) -> Tensor:
    """n, the cluster (0 … clusters − 1) of each of n points.

    With d_ij the distance over √c: density ρ_i = exp(−mean of d_ij² over the k nearest), δ_i = the distance to the
    nearest denser point (for the densest, to the farthest point), and the points of largest ρ·δ are the centres. Every
    other point joins its nearest centre. Equal densities are told apart by a little seeded noise.
    """
    n = len(points)
    if clusters >= n:
        return torch.arange(n, device=points.device)
    points = points.float()
    distance = torch.cdist(points, points) / points.shape[1] ** 0.5
    # Each point's own distance, 0, comes first.
    nearest = distance.sort(dim=1).values[:, 1 : min(neighbours, n - 1) + 1]
    density = (-nearest.square().mean(1)).exp()
    noise = torch.rand(n, generator=torch.Generator().manual_seed(seed)) * NOISE
    density = density + noise.to(density.device)
    denser = density[None, :] > density[:, None]
    gap = distance.masked_fill(~denser, torch.inf).amin(1)
    gap = torch.where(denser.any(1), gap, distance.amax(1))
    centres = ranked(density * gap)[:clusters]
    cluster = distance[:, centres].argmin(1)
    cluster[centres] = torch.arange(clusters, device=points.device)
    return cluster
