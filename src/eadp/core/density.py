"""Density peaks clustering: cluster centres are dense points that are far from any denser point."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eadp.core.ranking import rank_descending


class Clusters(NamedTuple):
    """A partition of n points into C clusters.

    Attributes:
        centres: C, the index of each cluster's central point.
        labels: n, the cluster (0 … C − 1) of each point, numbered in the order of `centres`.
    """

    centres: Tensor
    labels: Tensor


def density_peaks(points: Tensor, clusters: int) -> Clusters:
    """Cluster points by density peaks.

    Let d_ij be the Euclidean distance divided by √c. The density of point i is ρ_i = exp(−mean of d_ij² over its C
    nearest points, including i itself). δ_i is the distance to the nearest denser point, or the largest distance of all
    for the densest point. The C points with the largest ρ·δ are the centres, and every other point joins its nearest
    centre. Of points with equal density, the one with the lower index counts as denser.

    Args:
        points: n×c.
        clusters: Number of clusters C. At most n are made.

    Returns:
        The centres and the cluster of each point.
    """
    n = len(points)
    clusters = min(clusters, n)
    points = points.double()
    distance = torch.cdist(points, points) / points.shape[1] ** 0.5
    density = (-distance.sort(dim=1).values[:, :clusters].square().mean(1)).exp()
    rank = rank_descending(density).argsort()
    is_denser = rank[None, :] < rank[:, None]
    gap = torch.where(is_denser.any(1), distance.masked_fill(~is_denser, torch.inf).amin(1), distance.max())
    centres = rank_descending(density * gap)[:clusters]
    labels = distance[:, centres].argmin(1)
    labels[centres] = torch.arange(clusters, device=points.device)
    return Clusters(centres, labels)
