"""Facility location over a clip: a token also represents tokens of nearby frames."""

from __future__ import annotations

import math
from collections import deque

import torch
from torch import Tensor

from eadp.core import checks, ties
from eadp.core.facility import (
    BOUND_MARGIN,
    FacilityLocationResult,
    check_weights,
    coverage_of,
    objective_goal,
)
from eadp.core.similarity import DEFAULT_MATRIX_LIMIT, self_similarity, unit_rows
from eadp.core.trace import part


def facility_location_over_time(
    features: Tensor,
    weights: Tensor,
    frames: int,
    reach: int,
    keep: int | None = None,
    coverage: float | None = None,
    *,
    decay: float = 0.0,
    per_frame: int = 0,
    matrix_limit: int = DEFAULT_MATRIX_LIMIT,
) -> FacilityLocationResult:
    """Maximize F(Y) = Σ_j w_j · max_{i∈Y} κ(|t_i − t_j|) · Sim_ij over the tokens of a clip greedily; t_i is i's frame.

    κ(Δ) = (1 − decay)^Δ lowers the similarity of tokens that are Δ frames apart. Tokens more than `reach` frames apart
    do not represent each other, so only a band of the similarity matrix is computed: frames·(2·reach + 1)·n² values for
    frames of n tokens. The quotas of the frames follow from the picks. Ties are decided as in `facility_location`. The
    greedy algorithm itself runs on the CPU.

    Args:
        features: N×d, frame by frame, with as many tokens in each frame.
        weights: N, finite and at least 0, not all 0.
        frames: The number of frames.
        reach: The number of frames before and after its own that a token may represent, at least 1.
        keep: Number of tokens to pick.
        coverage: Pick only as many tokens as reach this coverage, in (0, 1]. Together with `keep`, at most `keep`.
        decay: How much of a similarity is lost per frame of distance, in [0, 1).
        per_frame: The number of tokens to pick in each frame at least.
        matrix_limit: Bytes that the band may take.

    Returns:
        The picks in order. Coverage is 0 for what the best token of each frame represents within its frame, as in
        `facility_location_by_quota`, and 1 for everything.

    Raises:
        ValueError: If neither `keep` nor `coverage` is given, an argument is out of range, or the band is too large.
        TypeError: If a count is not an int.
    """
    from eadp.core.kernels import temporal_greedy

    if keep is None and coverage is None:
        raise ValueError("give keep= (how many tokens), coverage= (the share to reach), or both")
    total = len(features)
    if total % frames or weights.shape != (total,):
        raise ValueError(
            f"a clip has as many tokens in each frame and one weight per token, got {total} tokens in {frames} frames "
            f"and weights of shape {tuple(weights.shape)}"
        )
    limit = total if keep is None else keep
    checks.count("keep", limit, total)
    if per_frame * frames > limit or per_frame > total // frames:
        raise ValueError(
            f"{per_frame} tokens in each of {frames} frames do not fit: the budget is {limit} and a frame has "
            f"{total // frames}"
        )
    if coverage is not None:
        checks.share("coverage", coverage)
    if not 0 <= decay < 1:
        raise ValueError(f"decay must lie in [0, 1), got {decay}")
    checks.positive("reach", reach)
    check_weights(weights)
    band = _similarity_band(features, frames, reach, decay, matrix_limit)
    within = band[:, reach]
    w = weights.detach().double().cpu()
    singles = within @ w.to(within).view(frames, -1, 1)
    single_objective = singles.amax(dim=1).sum().item()
    full_objective = (within.diagonal(dim1=1, dim2=2).double().flatten() @ w).item()
    goal = math.inf if coverage is None else objective_goal(coverage, single_objective, full_objective)
    order, gains, remaining, tie_loss, was_restricted = temporal_greedy(
        band.numpy(), w.numpy(), limit, goal, per_frame, ties.ROUNDING_NOISE, ties.TIE_MARGIN
    )
    objective = float(gains.sum())
    highest = objective + remaining + ties.ROUNDING_NOISE * w.sum().item() + BOUND_MARGIN * full_objective
    if not was_restricted:
        highest = min(highest, (objective + tie_loss) / (1 - 1 / math.e))
    reached = coverage_of(objective, single_objective, full_objective)
    bound = max(reached, coverage_of(highest, single_objective, full_objective))
    indices, gains = torch.from_numpy(order).to(features.device), torch.from_numpy(gains).to(features.device)
    return FacilityLocationResult(indices, gains, reached, bound, single_objective, full_objective)


@part("similarity")
def _similarity_band(features: Tensor, frames: int, reach: int, decay: float, matrix_limit: int) -> Tensor:
    """Compute κ(|s − t|) · Sim for all pairs of frames at most `reach` apart: frames×(2·reach + 1)×n×n, on the CPU.

    Entry [t, reach + s − t, j, u] is the similarity of token j of frame t to token u of frame s. Entries for frames
    outside the clip are 0.
    """
    n = len(features) // frames
    dtype = torch.promote_types(features.dtype, torch.float32)
    size = frames * (2 * reach + 1) * n * n * dtype.itemsize
    if size > matrix_limit:
        raise ValueError(
            f"the similarities of {frames} frames of {n} tokens within {reach} frames take {size} bytes, more than "
            f"matrix_limit={matrix_limit}: set a smaller time or a larger matrix_limit"
        )
    band = torch.zeros(frames, 2 * reach + 1, n, n, dtype=dtype)
    half = torch.tensor(0.5, dtype=dtype, device=features.device)
    recent: deque[Tensor] = deque(maxlen=reach + 1)
    for t, frame in enumerate(features.detach().split(n)):
        recent.append(unit_rows(frame))
        for distance, earlier in enumerate(reversed(recent)):
            block = torch.addmm(half, recent[-1], earlier.T, alpha=0.5).clamp_(0, 1)
            if distance == 0:
                block = block.triu() + block.triu(1).T
                block.diagonal().copy_(self_similarity(earlier))
            block = block.mul_((1 - decay) ** distance).cpu()
            band[t, reach - distance] = block
            band[t - distance, reach + distance] = block.T
    return band
