"""Facility location: the K tokens that represent the whole weighted image best.

F(Y) = Σ_j w_j · max_{i∈Y} S_ij is monotone and submodular, so the greedy choice reaches at least 1 − 1/e of the best.
Three solvers give the same picks: `numba` (CPU, incremental), `torch` (any device, no host sync in its loop) and `rows`
(no N×N matrix in memory).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eadp.core import checks
from eadp.core.kernels import facility_greedy, is_symmetric
from eadp.core.similarity import CosineRows

BACKENDS = ("auto", "numba", "torch", "rows")

ROUNDING = 1e-9
"""Margin that makes the bound safe against rounding, as a share of F of all tokens."""


@dataclass(frozen=True)
class FacilityLocation:
    """The greedy choice.

    indices:  K, in the order of picking.
    gains:    K, float64, what each pick added to F.
    coverage: F(picked) / F(all), in [0, 1].
    bound:    no K tokens at all reach more coverage than this; coverage / bound is the quality that is proved.
    everything: F(all), the unit of coverage and bound.
    """

    indices: Tensor
    gains: Tensor
    coverage: float
    bound: float
    everything: float


def facility_location(
    similarity: Tensor | CosineRows,
    weights: Tensor,
    keep: int | None = None,
    coverage: float | None = None,
    *,
    backend: str = "auto",
) -> FacilityLocation:
    """Greedy maximiser of F. Give `keep` (how many), `coverage` (as few as reach it), or both (whichever comes first).

    similarity: N×N, finite, at least 0; or `CosineRows`. weights: N, finite, at least 0, not all 0.
    Each step picks argmax_u Σ_j w_j · max(0, S_uj − C_j), the lowest index on a tie; then C ← max(C, S_u).
    """
    checks.known("backend", backend, BACKENDS)
    n = len(similarity) if isinstance(similarity, CosineRows) else checks.square("similarity", similarity)
    if keep is None and coverage is None:
        raise ValueError("give keep= (how many tokens), coverage= (the share to reach), or both")
    if keep is not None:
        checks.count("keep", keep, n)
    if coverage is not None:
        checks.share("coverage", coverage)
    if backend != "auto" and isinstance(similarity, CosineRows) != (backend == "rows"):
        raise ValueError(f"backend {backend!r} does not go with a {type(similarity).__name__}: 'rows' takes CosineRows")
    _check_weights(weights, n)
    if isinstance(similarity, CosineRows):
        tops = similarity.own
    else:
        similarity = similarity.detach().to(torch.promote_types(similarity.dtype, torch.float32))
        tops = _checked_tops(similarity)

    weights = weights.detach().to(tops.device, _exact(tops.device))
    everything = (weights @ tops.to(weights)).item()
    limit = n if keep is None else keep
    # A target is met when it is met but for the rounding of the sums.
    goal = math.inf if coverage is None else coverage * everything * (1 - 1e-12)
    if isinstance(similarity, CosineRows):
        order, gains, ahead = _by_rows(similarity, weights, limit, goal)
    elif backend == "numba" or (backend == "auto" and tops.device.type == "cpu"):
        order, gains, ahead = _by_numba(similarity, weights, limit, goal)
    else:
        order, gains, ahead = _by_torch(similarity, weights, limit, goal)
    reached = min(1.0, gains.sum().item() / everything)
    bound = min(1.0, reached + ahead / everything + ROUNDING, reached / (1 - 1 / math.e))
    return FacilityLocation(order, gains, reached, max(reached, bound), everything)


def _check_weights(weights: Tensor, n: int) -> None:
    if weights.shape != (n,):
        raise ValueError(f"weights must have one value for each of the {n} tokens, got shape {tuple(weights.shape)}")
    checks.finite("weights", weights)
    if weights.min() < 0:
        where = int(weights.argmin())
        raise ValueError(f"weights must be 0 or more, but weights[{where}] is {weights[where].item():.6g}")
    if not weights.any():
        raise ValueError("weights are all 0: there is nothing to cover. Equal weights (ones) cover the image evenly")


def _checked_tops(similarity: Tensor) -> Tensor:
    """max_i S_ij of each column, and that all values are finite and at least 0."""
    tops, low = similarity.amax(dim=0), similarity.amin()
    if not (low >= 0 and tops.isfinite().all()):
        checks.finite("similarity", similarity)
        i, j = divmod(int(similarity.argmin()), len(similarity))
        raise ValueError(
            f"similarity must be 0 or more, but similarity[{i}, {j}] is {low.item():.6g}; "
            "core.token_similarity maps cosines to [0, 1]"
        )
    return tops


def _exact(device: torch.device) -> torch.dtype:
    """Gains in float32 drift and picks diverge late in a run; Apple's GPUs have nothing better."""
    return torch.float32 if device.type == "mps" else torch.float64


Solved = tuple[Tensor, Tensor, float]
"""Order, gains, and the sum of the K largest gains that are left after the last pick."""


def _by_numba(similarity: Tensor, weights: Tensor, limit: int, goal: float) -> Solved:
    """On the CPU: gains are kept up to date column by column instead of being computed anew."""
    rows = np.ascontiguousarray(similarity.cpu().numpy())
    columns = rows if is_symmetric(rows) else np.ascontiguousarray(rows.T)
    order, gains, ahead = facility_greedy(rows, columns, weights.cpu().double().numpy(), limit, goal)
    return torch.from_numpy(order).to(similarity.device), torch.from_numpy(gains).to(weights), ahead


LOOK = 64
"""Picks between two looks at the coverage reached: a look waits for the device."""


def _by_torch(similarity: Tensor, weights: Tensor, limit: int, goal: float) -> Solved:
    """On any device: the dense step in one scratch matrix, fixed shapes, nothing read back inside the loop."""
    n = len(similarity)
    covered = torch.zeros_like(weights)
    scratch = weights.new_empty(n, n)
    taken = torch.zeros_like(weights, dtype=torch.bool)
    order = torch.empty(limit, dtype=torch.long, device=weights.device)
    gains = weights.new_empty(limit)

    def marginal() -> Tensor:
        torch.sub(similarity, covered, out=scratch)
        return torch.mv(scratch.clamp_min_(0), weights)

    done = limit
    for step in range(limit):
        gain, pick = marginal().masked_fill_(taken, -1).max(dim=0, keepdim=True)
        order[step : step + 1] = pick
        gains[step : step + 1] = gain
        taken.index_fill_(0, pick, True)
        torch.maximum(covered, similarity.index_select(0, pick)[0], out=covered)
        if goal < math.inf and (step % LOOK == LOOK - 1 or step == limit - 1):
            short = int((gains[: step + 1].cumsum(0) < goal).sum())
            if short <= step:
                done = short + 1
                break
    order, gains = order[:done], gains[:done]
    covered = similarity[order].amax(dim=0).to(covered)
    ahead = marginal().index_fill_(0, order, 0).topk(done).values.sum().item()
    return order, gains, ahead


STALE = 64
"""Candidates whose gains are computed anew at a time."""


def _by_rows(similarity: CosineRows, weights: Tensor, limit: int, goal: float) -> Solved:
    """Without the matrix: gains only fall, so an old gain is a bound, and only candidates whose bound is on top are
    computed anew, a batch of rows at a time (Minoux's lazy greedy)."""
    n = len(similarity)
    everyone = torch.arange(n, device=weights.device)
    covered = torch.zeros_like(weights)
    bounds = torch.cat([similarity.rows(batch).to(weights) @ weights for batch in everyone.split(STALE)])
    fresh = torch.ones_like(weights, dtype=torch.bool)
    order: list[int] = []
    gains: list[float] = []
    reached = 0.0

    def refresh(candidates: Tensor) -> None:
        rise = (similarity.rows(candidates).to(weights) - covered).clamp_min_(0)
        bounds[candidates] = rise @ weights
        fresh[candidates] = True

    while len(order) < limit and reached < goal:
        while not fresh[pick := bounds.argmax()]:
            top = bounds.topk(min(STALE, n - len(order))).indices
            refresh(top[~fresh[top]])
        rise = (similarity.rows(pick[None])[0].to(covered) - covered).clamp_min_(0)
        covered += rise
        order.append(int(pick))
        gains.append((rise @ weights).item())
        reached += gains[-1]
        fresh[:] = False
        bounds[pick] = -math.inf
    # Stale bounds are too large, never too small: good for an upper bound, but the largest are worth computing.
    most = min(len(order), n - len(order))
    for batch in bounds.topk(most).indices.split(STALE):
        refresh(batch)
    ahead = bounds.topk(most).values.sum().item()
    return torch.tensor(order, device=weights.device), weights.new_tensor(gains), ahead
