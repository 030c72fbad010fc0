"""Clustering by density peaks: centres are dense points far from any denser one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eadp.core.ranking import ranked


class Clusters(NamedTuple):
    """centres: C, which of the n points; of: n, the cluster (0 … C − 1) of each point, in the order of the centres."""

    centres: Tensor
    of: Tensor


def density_peaks(points: Tensor, clusters: int) -> Clusters:
    """n points, n×c, in C = `clusters` clusters, no more than there are points.

    With d_ij the distance over √c: density ρ_i = exp(−mean of d_ij² over the C nearest points, i itself among them),
    δ_i = the distance to the nearest denser point (for the densest, the largest of all distances), and the points of
    largest ρ·δ are the centres. Every other point joins its nearest centre. Of equal densities the first counts as
    the denser.
    """
    n = len(points)
    clusters = min(clusters, n)
    points = points.double()
    distance = torch.cdist(points, points) / points.shape[1] ** 0.5
    density = (-distance.sort(dim=1).values[:, :clusters].square().mean(1)).exp()
    rank = ranked(density).argsort()
    denser = rank[None, :] < rank[:, None]
    gap = torch.where(denser.any(1), distance.masked_fill(~denser, torch.inf).amin(1), distance.max())
    centres = ranked(density * gap)[:clusters]
    cluster = distance[:, centres].argmin(1)
    cluster[centres] = torch.arange(clusters, device=points.device)
    return Clusters(centres, cluster)
