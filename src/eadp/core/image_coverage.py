"""Facility location up to a coverage, for several images on a device: one batch, and one wait."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from eadp.core import ties
from eadp.core.block_cover import cover_blocks
from eadp.core.block_layout import BlockLayout
from eadp.core.blocks import merge_by_gain, take_until_covered
from eadp.core.device_tables import numbers_on_device
from eadp.core.facility import FacilityLocationResult, goal_shares, result_of
from eadp.core.solution import Solution


def cover_images_by_coverage(
    features: Tensor,
    weights: Tensor,
    layout: BlockLayout,
    blocks: Sequence[int],
    coverage: float,
    limits: Sequence[int | None],
    *along: Tensor,
) -> tuple[list[FacilityLocationResult | None], list[list[float]]]:
    """Pick as few tokens of each image as reach a coverage, by Triton; see `facility_location_by_coverage`.

    A block is solved until nothing is left to gain: which of its picks are needed is known once all are compared.

    Args:
        features: N×d, the tokens of all images.
        weights: N, their weights.
        layout: Where the blocks of all images lie among the tokens.
        blocks: The number of blocks of each image.
        coverage: The coverage to reach.
        limits: The most tokens of each image; None for no limit.
        along: Numbers or booleans, one per block, to be read back in the same copy.

    Returns:
        The result for each image on the CPU, with indices that count within it; None where its input was not finite.
        And the numbers that were read along.
    """
    quotas, goals, first = list[int](), list[float](), 0
    for count, limit in zip(blocks, limits, strict=True):
        sizes = layout.sizes[first : first + count]
        quotas += [size if limit is None else min(limit, size) for size in sizes]
        goals += goal_shares(coverage if count == 1 else 1.0) * count
        first += count
    goal = numbers_on_device(tuple(goals), layout.device, torch.float64).view(-1, 2)
    cover = cover_blocks(features, weights, layout, quotas, goal=goal, backend="triton")
    solutions, (is_even, *numbers) = cover.solution.read(cover.weights, cover.is_even, *along)
    results, first = list[FacilityLocationResult | None](), 0
    for count, limit in zip(blocks, limits, strict=True):
        own = slice(first, first + count)
        starts = [block.start - layout.blocks[first].start for block in layout.blocks[own]]
        results.append(_result(solutions[own], is_even[own], starts, coverage, limit))
        first += count
    return results, numbers


def _result(
    solutions: Sequence[Solution], is_even: Sequence[float], starts: Sequence[int], coverage: float, limit: int | None
) -> FacilityLocationResult | None:
    """Merge the picks of the blocks of one image; None where its input was not finite."""
    if any(not 0 < solution.full_objective < math.inf for solution in solutions) or all(is_even):
        return None
    if len(solutions) == 1:
        return result_of(solutions[0])
    device, none = torch.device("cpu"), torch.zeros(0, dtype=torch.long)
    parts, queues, first_gains = [], [], []
    for solution, even, start in zip(solutions, is_even, starts, strict=True):
        gains = [] if even else solution.gains.tolist()
        single, full = (0.0, 0.0) if even else (gains[0], solution.full_objective)
        parts.append(FacilityLocationResult(none, none.double(), 0.0, 0.0, single, full))
        if not even:
            queues.append(zip(gains, (solution.order + start).tolist(), strict=True))
            first_gains.append(single + ties.ROUNDING_NOISE * full)
    return take_until_covered(merge_by_gain(queues, first_gains), parts, coverage, limit, device)
