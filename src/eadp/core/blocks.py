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
from eadp.core.backends import DEVICE_BACKENDS, choose_backend
from eadp.core.block_cover import cover_blocks, cover_evenly_without_weights
from eadp.core.block_layout import BlockLayout
from eadp.core.cpu_blocks import solve_blocks
from eadp.core.facility import (
    BOUND_MARGIN,
    FacilityLocationResult,
    check_weights,
    coverage_of,
    facility_location,
    objective_goal,
    result_of,
)
from eadp.core.similarity import (
    DEFAULT_MATRIX_LIMIT,
    LazySimilarity,
    block_similarity,
    build_similarity,
    highest_precision,
)
from eadp.core.solution import Solution

FIRST_PICKS = 8
"""Picks for which a block is solved at first when tokens are picked by coverage; then twice as many, and so on."""

Pick = tuple[float, int]
"""The gain of a pick, and its token index."""


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
    chosen = choose_backend(backend, features.device)
    size = torch.promote_types(features.dtype, torch.float32).itemsize
    fits = len(blocks) * max(block.stop - block.start for block in blocks) ** 2 * size <= matrix_limit
    is_regular = len(blocks) > 1 and BlockLayout.of(blocks, features.device).is_regular
    if fits and (chosen in DEVICE_BACKENDS or (chosen == "numba" and is_regular)):
        parts = _cover_together(features, weights, blocks, quotas, chosen)
    else:
        parts = [
            _cover_block(features[block], weights[block], quota, backend, matrix_limit)
            for block, quota in zip(blocks, quotas, strict=True)
        ]
    return join_blocks(parts, [block.start for block in blocks], features.device)


def join_blocks(
    parts: Sequence[FacilityLocationResult], starts: Sequence[int], device: torch.device
) -> FacilityLocationResult:
    """Join the picks of single blocks, made with given quotas. starts: the index of each block's first token."""
    if len(parts) == 1 and starts[0] == 0 and parts[0].indices.device == device:
        return parts[0]
    picks = [
        zip(part.gains.tolist(), (part.indices + start).tolist(), strict=True)
        for part, start in zip(parts, starts, strict=True)
    ]
    merged = list(merge_by_gain(picks, [math.inf] * len(picks)))
    # With the same quotas, a block without picks represents nothing, whatever the other picks are.
    highest = sum(_highest_objective(part) for part in parts if len(part.indices))
    return _combine(merged, parts, highest, device)


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
    blocks, largest gain first. Each block is solved only as far as its picks are needed; a block whose best token gains
    less than the last pick is not solved at all. Where gains tie, the lower block comes first.

    Args:
        features: N×d.
        weights: N, the weight of each token.
        blocks: The range of token indices of each block.
        coverage: The coverage to reach, in (0, 1]: 0 is what the best single token of each block represents, 1 is
            everything.
        limit: Maximum number of tokens to pick. None for no limit.
        backend: As for `facility_location`.
        matrix_limit: Bytes that a block's similarity matrix may take; for larger blocks rows are computed on demand.

    Returns:
        The picks of all blocks, largest gain first.
    """
    if len(blocks) == 1:
        similarity = _similarity_of(features, backend, matrix_limit)
        backend = _backend_for(similarity, backend)
        return facility_location(similarity, weights, limit, coverage, symmetric=True, backend=backend)
    check_weights(weights)
    parts = [_without_picks(features[block], weights[block]) for block in blocks]
    relevant = [(part, block) for part, block in zip(parts, blocks, strict=True) if part.full_objective > 0]
    merged = merge_by_gain(
        [_picks_on_demand(features, weights, block, backend, matrix_limit) for _, block in relevant],
        [part.single_objective + ties.ROUNDING_NOISE * part.full_objective for part, _ in relevant],
    )
    return take_until_covered(merged, parts, coverage, limit, features.device)


def take_until_covered(
    merged: Iterator[Pick],
    parts: Sequence[FacilityLocationResult],
    coverage: float,
    limit: int | None,
    device: torch.device,
) -> FacilityLocationResult:
    """Take as few of the picks of all blocks as reach a coverage.

    Args:
        merged: The picks, largest gain first.
        parts: What the best single token and all tokens of each block represent.
        coverage: As for `facility_location_by_coverage`.
        limit: The same.
        device: Where the result is.
    """
    single_objective, full_objective = (
        sum(part.single_objective for part in parts),
        sum(part.full_objective for part in parts),
    )
    goal = objective_goal(coverage, single_objective, full_objective)
    picks: list[Pick] = []
    objective = next_gain = 0.0
    for gain, index in merged:
        if gain == 0 or (picks and objective >= goal) or len(picks) == limit:
            next_gain = gain
            break
        picks.append((gain, index))
        objective += gain
    # At each pick, ties within a block and ties between blocks can each give away TIE_MARGIN of F(all tokens).
    k = len(picks)
    tie_loss = 2 * ties.TIE_MARGIN * full_objective * (k + 1)
    by_gains = objective + k * next_gain + tie_loss + BOUND_MARGIN * full_objective
    highest = min(by_gains, (objective + tie_loss) / (1 - 1 / math.e))
    return _combine(picks, parts, highest, device)


def _combine(
    picks: Sequence[Pick], parts: Sequence[FacilityLocationResult], highest: float, device: torch.device
) -> FacilityLocationResult:
    """Build the result of all blocks from their picks; `highest` is an upper bound on F of as many tokens."""
    gains, indices = ([pick[which] for pick in picks] for which in (0, 1))
    single_objective = sum(part.single_objective for part in parts)
    full_objective = sum(part.full_objective for part in parts)
    coverage = coverage_of(math.fsum(gains), single_objective, full_objective)
    return FacilityLocationResult(
        torch.tensor(indices, dtype=torch.long, device=device),
        torch.tensor(gains, dtype=highest_precision(device), device=device),
        coverage,
        max(coverage, coverage_of(highest, single_objective, full_objective)),
        single_objective,
        full_objective,
    )


def _highest_objective(part: FacilityLocationResult) -> float:
    """Return the upper bound on F of as many tokens of a block, from the bound on their coverage."""
    return part.single_objective + part.bound * (part.full_objective - part.single_objective)


def _cover_together(
    features: Tensor, weights: Tensor, blocks: Sequence[slice], quotas: Sequence[int], backend: str
) -> list[FacilityLocationResult]:
    """Cover all blocks at once: by one batch on a device, by threads on the CPU."""
    if backend == "numba":
        # Every block makes at least one pick, which tells what its best single token represents.
        limits = [max(1, quota) for quota in quotas]
        layout = BlockLayout.of(blocks, features.device)
        block_weights, evenly = cover_evenly_without_weights(layout.stack(weights.detach()))
        solutions = solve_blocks(block_similarity(layout.stack(features)).cpu(), block_weights.cpu(), limits)
        found: tuple[list[Solution], list[bool]] = solutions, evenly.tolist()
    else:
        found = cover_blocks(features, weights, blocks, quotas, backend=backend).read()[:2]
    parts = []
    for solution, is_even, block, quota in zip(*found, blocks, quotas, strict=True):
        if not 0 < solution.full_objective < math.inf:
            _cover_block(features[block], weights[block], max(1, quota), "numba", DEFAULT_MATRIX_LIMIT)  # raises
        parts.append(block_result(solution, is_even, quota))
    return parts


def block_result(solution: Solution, is_even: bool, quota: int) -> FacilityLocationResult:
    """Return the result for one block.

    Args:
        solution: Its picks; one, if the quota is 0.
        is_even: Whether its weights were all 0, so that it was covered evenly.
        quota: Its quota.
    """
    part = result_of(solution)
    if is_even:
        part = replace(part, gains=torch.zeros_like(part.gains), single_objective=0.0, full_objective=0.0)
    if quota == 0:
        part = replace(part, indices=part.indices[:0], gains=part.gains[:0], coverage=0.0, bound=0.0)
    return part


def _cover_block(
    features: Tensor, weights: Tensor, quota: int, backend: str, matrix_limit: int
) -> FacilityLocationResult:
    """Cover one block. If all its weights are 0, cover it evenly, with gains of 0."""
    if quota == 0:
        return _without_picks(features, weights)
    similarity = _similarity_of(features, backend, matrix_limit)
    backend = _backend_for(similarity, backend)
    if weights.any():
        return facility_location(similarity, weights, quota, symmetric=True, backend=backend)
    even = facility_location(similarity, torch.ones_like(weights), quota, symmetric=True, backend=backend)
    return replace(even, gains=torch.zeros_like(even.gains), single_objective=0.0, full_objective=0.0)


def _without_picks(features: Tensor, weights: Tensor) -> FacilityLocationResult:
    """Return the result for a block of which no token is picked. It takes no similarity matrix."""
    similarity = LazySimilarity.from_features(features)
    none = torch.zeros(0, dtype=torch.long, device=features.device)
    single_objective = similarity.single_objectives(weights).max().item()
    full_objective = (weights.double() @ similarity.diagonal.double()).item()
    return FacilityLocationResult(none, none.double(), 0.0, 0.0, single_objective, full_objective)


def _picks_on_demand(
    features: Tensor, weights: Tensor, block: slice, backend: str, matrix_limit: int
) -> Iterator[Pick]:
    """Yield the greedy picks of one block, solving for twice as many whenever the picks run out."""
    similarity = _similarity_of(features[block], backend, matrix_limit)
    backend = _backend_for(similarity, backend)
    done, keep, size = 0, FIRST_PICKS, block.stop - block.start
    while done < size:
        part = facility_location(similarity, weights[block], min(keep, size), symmetric=True, backend=backend)
        yield from zip(part.gains[done:].tolist(), (part.indices[done:] + block.start).tolist(), strict=True)
        done, keep = len(part.indices), 2 * keep


def _similarity_of(features: Tensor, backend: str, matrix_limit: int) -> Tensor | LazySimilarity:
    """Build the similarity in the form that the backend takes: a matrix if it fits, unless rows were asked for."""
    return LazySimilarity.from_features(features) if backend == "rows" else build_similarity(features, matrix_limit)


def _backend_for(similarity: object, requested: str) -> str:
    """The requested backend, but `rows` if the matrix was too large to build."""
    return requested if isinstance(similarity, Tensor) else "rows"


def merge_by_gain(queues: Sequence[Iterator[Pick]], first_gains: Sequence[float]) -> Iterator[Pick]:
    """Merge the picks of all blocks, largest gain first, keeping the order within each block.

    Where gains of several blocks tie, the lower block comes first. A queue is asked for a pick only when that pick can
    be the next one.

    Args:
        queues: The picks of each block, in order. Gains do not rise.
        first_gains: An upper bound on the first gain of each block.

    Yields:
        The picks of all blocks.
    """
    unsolved = -1  # In place of the index while only the upper bound is known.
    heads = [(-gain, which, unsolved) for which, gain in enumerate(first_gains)]
    heapq.heapify(heads)

    def advance(which: int) -> None:
        if (pick := next(queues[which], None)) is not None:
            heapq.heappush(heads, (-pick[0], which, pick[1]))

    while heads:
        if heads[0][2] == unsolved:
            advance(heapq.heappop(heads)[1])
            continue
        floor = -heads[0][0] * (1 - ties.TIE_MARGIN)
        tied = []
        while heads and -heads[0][0] >= floor:
            head = heapq.heappop(heads)
            if head[2] == unsolved:
                advance(head[1])
            else:
                tied.append(head)
        for negative_gain, which, index in sorted(tied, key=itemgetter(1)):
            yield -negative_gain, index
            advance(which)
