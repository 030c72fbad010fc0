"""Facility location over several blocks (crops, frames): tokens represent tokens of their own block."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter

import torch
from torch import Tensor

from eadp.core import ties
from eadp.core.facility import ROUNDING, FacilityLocation, facility_location, goal_of
from eadp.core.similarity import DENSE_LIMIT, similarity_within


def cover_by_quota(
    features: Tensor,
    weights: Tensor,
    blocks: Sequence[slice],
    quotas: Sequence[int],
    *,
    backend: str = "auto",
    matrix_limit: int = DENSE_LIMIT,
) -> FacilityLocation:
    """Q_p tokens of each block p. `bound` holds for these quotas."""
    parts = [
        _cover(features[block], weights[block], quota, backend, matrix_limit)
        for block, quota in zip(blocks, quotas, strict=True)
    ]
    whole = _merged(parts, blocks)
    return replace(whole, bound=sum(part.bound * part.everything for part in parts) / whole.everything)


def cover_by_share(
    features: Tensor,
    weights: Tensor,
    blocks: Sequence[slice],
    coverage: float,
    limit: int | None = None,
    *,
    backend: str = "auto",
    matrix_limit: int = DENSE_LIMIT,
) -> FacilityLocation:
    """As few tokens as reach `coverage` of all the blocks together, and at most `limit`.

    F adds up over blocks and gains only fall, so the greedy over all blocks merges theirs, largest gain first; gains
    that tie are taken block by block.
    """
    if len(blocks) == 1:
        similarity = similarity_within(features, matrix_limit)
        backend = _backend(similarity, backend)
        return facility_location(similarity, weights, limit, coverage, symmetric=True, backend=backend)
    parts = [
        _cover(features[block], weights[block], block.stop - block.start, backend, matrix_limit) for block in blocks
    ]
    whole = _merged(parts, blocks)
    short = whole.gains.cumsum(0) < goal_of(coverage, whole.everything)
    k = min(int(short.sum()) + 1, len(whole.indices), limit or len(whole.indices))
    reached = min(1.0, whole.gains[:k].sum().item() / whole.everything)
    # K more tokens add at most K times the largest gain that is left. Ties in a block and between blocks can give away
    # TIE of everything each at a pick.
    given = 2 * ties.TIE * (k + 1)
    ahead = k * whole.gains[k:].max().item() / whole.everything + given if k < len(whole.gains) else 0.0
    bound = min(1.0, reached + ahead + ROUNDING, (reached + given) / (1 - 1 / math.e))
    return replace(whole, indices=whole.indices[:k], gains=whole.gains[:k], coverage=reached, bound=max(reached, bound))


def _cover(features: Tensor, weights: Tensor, quota: int, backend: str, matrix_limit: int) -> FacilityLocation:
    """One block. Where the map leaves it at 0 nothing tells its tokens apart: the quota covers it evenly, gain 0."""
    if quota == 0:
        none = torch.zeros(0, dtype=torch.long, device=features.device)
        return FacilityLocation(none, none.double(), 0.0, 0.0, weights.double().sum().item())
    similarity = similarity_within(features, matrix_limit)
    backend = _backend(similarity, backend)
    if weights.any():
        return facility_location(similarity, weights, quota, symmetric=True, backend=backend)
    even = facility_location(similarity, torch.ones_like(weights), quota, symmetric=True, backend=backend)
    return replace(even, gains=torch.zeros_like(even.gains), coverage=0.0, bound=0.0, everything=0.0)


def _backend(similarity: object, wanted: str) -> str:
    """A matrix that is too large has one solver, whichever was wanted for those that fit."""
    return wanted if isinstance(similarity, Tensor) else "rows"


def _merged(parts: Sequence[FacilityLocation], blocks: Sequence[slice]) -> FacilityLocation:
    """The parts' picks in one order, largest gain first, each part's own order kept; block by block where gains tie."""

    def picks(part: FacilityLocation, block: slice) -> Iterator[tuple[float, int]]:
        return zip(part.gains.tolist(), (part.indices + block.start).tolist(), strict=True)

    queues = [picks(part, block) for part, block in zip(parts, blocks, strict=True)]
    heads: list[tuple[float, int, int]] = []

    def advance(which: int) -> None:
        if (pick := next(queues[which], None)) is not None:
            heapq.heappush(heads, (-pick[0], which, pick[1]))

    for which in range(len(queues)):
        advance(which)
    merged: list[tuple[float, int]] = []
    while heads:
        floor = -heads[0][0] * (1 - ties.TIE)
        tied = []
        while heads and -heads[0][0] >= floor:
            tied.append(heapq.heappop(heads))
        for loss, which, index in sorted(tied, key=itemgetter(1)):
            merged.append((-loss, index))
            advance(which)
    everything = sum(part.everything for part in parts)
    gains = parts[0].gains.new_tensor([gain for gain, _ in merged])
    indices = parts[0].indices.new_tensor([index for _, index in merged])
    return FacilityLocation(indices, gains, min(1.0, gains.sum().item() / everything), 1.0, everything)
