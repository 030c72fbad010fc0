"""Density peaks: points that are dense and far from any denser point. They make good cluster centres."""

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


def density_scores(points: Tensor, neighbours: int) -> Tensor:
    """Score points by how dense they are and how far they are from any denser point.

    Let d_ij be the Euclidean distance divided by √c. The density of point i is ρ_i = exp(−mean of d_ij² over its
    nearest points, including i itself). δ_i is the distance to the nearest denser point, or the largest distance of all
    for the densest point. The score is ρ·δ. Of points with equal density, the one with the lower index counts as
    denser.

    Args:
        points: n×c.
        neighbours: How many nearest points count. At most n do.

    Returns:
        n scores in float64.
    """
    return _score(_distances(points), neighbours)


def density_peaks(points: Tensor, clusters: int, neighbours: int | None = None) -> Clusters:
    """Cluster points by density peaks.

    The C points with the largest `density_scores` are the centres, and every other point joins its nearest centre.

    Args:
        points: n×c.
        clusters: Number of clusters C. At most n are made.
        neighbours: How many nearest points count for the density. None: as many as there are clusters.

    Returns:
        The centres and the cluster of each point.
    """
    clusters = min(clusters, len(points))
    distance = _distances(points)
    centres = rank_descending(_score(distance, clusters if neighbours is None else neighbours))[:clusters]
    labels = distance[:, centres].argmin(1)
    labels[centres] = torch.arange(clusters, device=points.device)
    return Clusters(centres, labels)


def _distances(points: Tensor) -> Tensor:
    points = points.double()
    return torch.cdist(points, points) / points.shape[1] ** 0.5


def _score(distance: Tensor, neighbours: int) -> Tensor:
    if not len(distance):
        return distance.new_zeros(0)
    density = (-distance.sort(dim=1).values[:, :neighbours].square().mean(1)).exp()
    rank = rank_descending(density).argsort()
    is_denser = rank[None, :] < rank[:, None]
    gap = torch.where(is_denser.any(1), distance.masked_fill(~is_denser, torch.inf).amin(1), distance.max())
    return density * gap
