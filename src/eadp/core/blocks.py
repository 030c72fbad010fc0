"""Facility location over several blocks (crops, frames). A token represents only tokens of its own block."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter

import torch
from torch import Tensor

from eadp.core import ties
from eadp.core.facility import BOUND_MARGIN, FacilityLocationResult, facility_location, objective_goal
from eadp.core.similarity import DEFAULT_MATRIX_LIMIT, build_similarity


def facility_location_by_quota(
    features: Tensor,
    weights: Tensor,
    blocks: Sequence[slice],
    quotas: Sequence[int],
    *,
    backend: str = "auto",
    matrix_limit: int = DEFAULT_MATRIX_LIMIT,
) -> FacilityLocationResult:
    """Pick Q_p tokens of each block p by `facility_location`.

    Args:
        features: N×d.
        weights: N, the weight of each token.
        blocks: The range of token indices of each block.
        quotas: Q_p, the number of tokens to pick in each block.
        backend: As for `facility_location`.
        matrix_limit: Bytes that a block's similarity matrix may take; for larger blocks rows are computed on demand.

    Returns:
        The picks of all blocks, largest gain first. `bound` holds for any choice with the same quotas.
    """
    parts = [
        _cover_block(features[block], weights[block], quota, backend, matrix_limit)
        for block, quota in zip(blocks, quotas, strict=True)
    ]
    whole = _merge_by_gain(parts, blocks)
    return replace(whole, bound=sum(part.bound * part.full_objective for part in parts) / whole.full_objective)


def facility_location_by_coverage(
    features: Tensor,
    weights: Tensor,
    blocks: Sequence[slice],
    coverage: float,
    limit: int | None = None,
    *,
    backend: str = "auto",
    matrix_limit: int = DEFAULT_MATRIX_LIMIT,
) -> FacilityLocationResult:
    """Pick as few tokens as reach a coverage of all blocks together.

    F is a sum over blocks and gains only fall, so the greedy algorithm over all blocks merges the picks of the single
    blocks, largest gain first. Where gains tie, the lower block comes first.

    Args:
        features: N×d.
        weights: N, the weight of each token.
        blocks: The range of token indices of each block.
        coverage: Share of F(all tokens) to reach, in (0, 1].
        limit: Maximum number of tokens to pick. None for no limit.
        backend: As for `facility_location`.
        matrix_limit: Bytes that a block's similarity matrix may take; for larger blocks rows are computed on demand.

    Returns:
        The picks of all blocks, largest gain first.
    """
    if len(blocks) == 1:
        similarity = build_similarity(features, matrix_limit)
        backend = _backend_for(similarity, backend)
        return facility_location(similarity, weights, limit, coverage, symmetric=True, backend=backend)
    parts = [
        _cover_block(features[block], weights[block], block.stop - block.start, backend, matrix_limit)
        for block in blocks
    ]
    whole = _merge_by_gain(parts, blocks)
    short = whole.gains.cumsum(0) < objective_goal(coverage, whole.full_objective)
    k = min(int(short.sum()) + 1, len(whole.indices), limit or len(whole.indices))
    reached = min(1.0, whole.gains[:k].sum().item() / whole.full_objective)
    # K more tokens add at most K times the largest remaining gain. At each pick, ties within a block and ties between
    # blocks can each give away TIE_MARGIN of F(all tokens).
    tie_loss = 2 * ties.TIE_MARGIN * (k + 1)
    remaining = k * whole.gains[k:].max().item() / whole.full_objective + tie_loss if k < len(whole.gains) else 0.0
    bound = min(1.0, reached + remaining + BOUND_MARGIN, (reached + tie_loss) / (1 - 1 / math.e))
    return replace(whole, indices=whole.indices[:k], gains=whole.gains[:k], coverage=reached, bound=max(reached, bound))


def _cover_block(
    features: Tensor, weights: Tensor, quota: int, backend: str, matrix_limit: int
) -> FacilityLocationResult:
    """Cover one block. If all its weights are 0, cover it evenly, with gains of 0."""
    if quota == 0:
        none = torch.zeros(0, dtype=torch.long, device=features.device)
        return FacilityLocationResult(none, none.double(), 0.0, 0.0, weights.double().sum().item())
    similarity = build_similarity(features, matrix_limit)
    backend = _backend_for(similarity, backend)
    if weights.any():
        return facility_location(similarity, weights, quota, symmetric=True, backend=backend)
    even = facility_location(similarity, torch.ones_like(weights), quota, symmetric=True, backend=backend)
    return replace(even, gains=torch.zeros_like(even.gains), coverage=0.0, bound=0.0, full_objective=0.0)


def _backend_for(similarity: object, requested: str) -> str:
    """The requested backend, but `rows` if the matrix was too large to build."""
    return requested if isinstance(similarity, Tensor) else "rows"


def _merge_by_gain(parts: Sequence[FacilityLocationResult], blocks: Sequence[slice]) -> FacilityLocationResult:
    """Merge the picks of all blocks, largest gain first, keeping the order within each block.

    Where gains of several blocks tie, the lower block comes first.
    """

    def picks(part: FacilityLocationResult, block: slice) -> Iterator[tuple[float, int]]:
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
        floor = -heads[0][0] * (1 - ties.TIE_MARGIN)
        tied = []
        while heads and -heads[0][0] >= floor:
            tied.append(heapq.heappop(heads))
        for negative_gain, which, index in sorted(tied, key=itemgetter(1)):
            merged.append((-negative_gain, index))
            advance(which)
    full_objective = sum(part.full_objective for part in parts)
    gains = parts[0].gains.new_tensor([gain for gain, _ in merged])
    indices = parts[0].indices.new_tensor([index for _, index in merged])
    coverage = min(1.0, gains.sum().item() / full_objective)
    return FacilityLocationResult(indices, gains, coverage, 1.0, full_objective)
