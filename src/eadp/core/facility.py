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

from eadp.core import checks, ties
from eadp.core.similarity import CosineRows, exact

BACKENDS = ("auto", "numba", "torch", "rows")

ROUNDING = 1e-9
"""Margin that makes the bound safe against rounding, as a share of F of all tokens."""


@dataclass(frozen=True)
class FacilityLocation:
    """The greedy choice.

    indices:  K, in the order of picking.
    gains:    K, float64, what each pick added to F; 0 where nothing was left to gain.
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
    symmetric: bool | None = None,
    backend: str = "auto",
) -> FacilityLocation:
    """Greedy maximiser of F. Give `keep` (how many), `coverage` (as few as reach it), or both (whichever comes first).

    similarity: N×N, finite, at least 0; or `CosineRows`. weights: N, finite, at least 0, not all 0.
    Each step picks argmax_u Σ_j w_j · max(0, S_uj − C_j); then C ← max(C, S_u). Ties go to the lowest index. Once no
    similarity is above the coverage by more than rounding, the lowest indices that are left follow; see `core.ties`.
    symmetric: whether the matrix equals its transpose, as `token_similarity`'s does; None looks.
    """
    checks.known("backend", backend, BACKENDS)
    n = len(similarity) if isinstance(similarity, CosineRows) else checks.square("similarity", similarity)
    if keep is None and coverage is None:
        raise ValueError("give keep= (how many tokens), coverage= (the share to reach), or both")
    if keep is not None:
        checks.count("keep", keep, n)
    if coverage is not None:
        checks.share("coverage", coverage)
    if weights.shape != (n,):
        raise ValueError(f"weights must have one value for each of the {n} tokens, got shape {tuple(weights.shape)}")
    if backend != "auto" and isinstance(similarity, CosineRows) != (backend == "rows"):
        raise ValueError(f"backend {backend!r} does not go with a {type(similarity).__name__}: 'rows' takes CosineRows")

    limit, share = n if keep is None else keep, math.inf if coverage is None else coverage
    weights = weights.detach()
    if isinstance(similarity, CosineRows):
        solved = _by_rows(similarity, weights, limit, share)
    else:
        similarity = similarity.detach()
        if similarity.dtype not in (torch.float32, torch.float64):
            similarity = similarity.float()
        if backend == "numba" or (backend == "auto" and similarity.device.type == "cpu"):
            solved = _by_numba(similarity, weights, limit, share, symmetric)
        else:
            solved = _by_torch(similarity, weights, limit, share)
    order, gains, everything, ahead, behind = solved
    reached = min(1.0, gains.sum().item() / everything)
    textbook = (reached + behind / everything) / (1 - 1 / math.e)
    bound = min(1.0, reached + ahead / everything + ROUNDING, textbook)
    return FacilityLocation(order, gains, reached, max(reached, bound), everything)


def _check(similarity: Tensor | None, weights: Tensor) -> None:
    """What is wrong with the values, in a sentence."""
    checks.finite("weights", weights)
    if weights.min() < 0:
        where = int(weights.argmin())
        raise ValueError(f"weights must be 0 or more, but weights[{where}] is {weights[where].item():.6g}")
    if not weights.any():
        raise ValueError("weights are all 0: there is nothing to cover. Equal weights (ones) cover the image evenly")
    if similarity is None:
        return
    checks.finite("similarity", similarity)
    if similarity.min() < 0:
        i, j = divmod(int(similarity.argmin()), len(similarity))
        raise ValueError(
            f"similarity must be 0 or more, but similarity[{i}, {j}] is {similarity[i, j].item():.6g}; "
            "core.token_similarity maps cosines to [0, 1]"
        )
    if not (similarity.amax(dim=0).double() @ weights.double()) > 0:
        raise ValueError("similarity is 0 wherever there is weight: no token represents anything")


def goal_of(share: float, everything: float) -> float:
    """A share is reached when it is reached but for rounding: 2 · NOISE, as tokens of zero norm count only half."""
    return share * everything * (1 - 2 * ties.NOISE)


Solved = tuple[Tensor, Tensor, float, float, float]
"""Order, gains, F of all tokens, what K more tokens could add at most, and the sum of what the picks gained less than
the best because they tied with it."""


def _by_numba(similarity: Tensor, weights: Tensor, limit: int, share: float, symmetric: bool | None) -> Solved:
    """On the CPU: gains are kept up to date column by column instead of being computed anew."""
    from eadp.core.kernels import facility_greedy, is_symmetric

    rows = np.ascontiguousarray(similarity.cpu().numpy())
    if symmetric is None:
        symmetric = is_symmetric(rows)
    columns = rows if symmetric else np.ascontiguousarray(rows.T)
    w = weights.double().cpu().numpy()
    highest = rows.max(axis=0)
    everything = float(w @ highest)
    if not (rows.min() >= 0 and w.min() >= 0 and 0 < everything < math.inf):
        _check(similarity, weights)
    noise = ties.NOISE * float(highest[w > 0].max())
    order, gains, left, behind = facility_greedy(rows, columns, w, limit, goal_of(share, everything), noise, ties.TIE)
    device, ahead = similarity.device, left + noise * float(w.sum())
    return torch.from_numpy(order).to(device), torch.from_numpy(gains).to(device), everything, ahead, behind


def _uncovered(weights: Tensor) -> Tensor:
    """The coverage before the first pick. A column that weighs nothing counts as covered."""
    return torch.zeros_like(weights).masked_fill_(weights == 0, math.inf)


def _gains(rises: Tensor, weights: Tensor, noise: float) -> Tensor:
    """What candidates gain, from their rows of S − C, which become rises; 0 for one that raises nothing above noise."""
    return torch.mv(rises.clamp_min_(0), weights).masked_fill_(rises.amax(dim=1) <= noise, 0)


LOOK = 64
"""Picks between two looks at the coverage reached: a look waits for the device."""


def _by_torch(similarity: Tensor, weights: Tensor, limit: int, share: float) -> Solved:
    """On any device: the dense step in one scratch matrix, fixed shapes, nothing read back inside the loop."""
    _check(similarity, weights)
    n = len(similarity)
    weights = weights.to(similarity.device, exact(similarity.device))
    highest = similarity.amax(dim=0).to(weights)
    everything = (weights @ highest).item()
    goal = goal_of(share, everything)
    noise = ties.NOISE * highest[weights > 0].max().item()
    covered = _uncovered(weights)
    scratch = weights.new_empty(n, n)
    taken = torch.zeros_like(weights, dtype=torch.bool)
    order = torch.empty(limit, dtype=torch.long, device=weights.device)
    gains, behind = weights.new_empty(limit), weights.new_zeros(1)

    def marginal() -> Tensor:
        torch.sub(similarity, covered, out=scratch)
        return _gains(scratch, weights, noise)

    done = limit
    for step in range(limit):
        candidates = marginal().masked_fill_(taken, -1)
        top, best = candidates.max(dim=0, keepdim=True)
        raised = (scratch.index_select(0, best)[0] > noise).to(weights) @ weights
        beside = similarity.index_select(0, best)[0]
        pick = ties.first(ties.tied(candidates, top, noise * raised, beside >= beside[best] - noise))
        chosen = similarity.index_select(0, pick)[0]
        gain = ((chosen - covered).clamp_min_(0) @ weights).where(top > 0, 0.0)
        order[step : step + 1] = pick
        gains[step : step + 1] = gain
        behind += (top - gain).clamp_min_(0)
        taken.index_fill_(0, pick, True)
        torch.maximum(covered, chosen, out=covered)
        if goal < math.inf and (step % LOOK == LOOK - 1 or step == limit - 1):
            useful = int((gains[: step + 1] > 0).sum())
            short = int((gains[: step + 1].cumsum(0) < goal).sum())
            if min(short, useful) <= step:
                done = min(short + 1, useful)
                break
    order, gains = order[:done], gains[:done]
    covered = torch.maximum(_uncovered(weights), similarity[order].amax(dim=0))
    ahead = (marginal().index_fill_(0, order, 0).topk(done).values.sum() + noise * weights.sum()).item()
    return order, gains, everything, ahead, behind.item()


STALE = 64
"""Candidates whose gains are computed anew at a time."""


def _by_rows(similarity: CosineRows, weights: Tensor, limit: int, share: float) -> Solved:
    """Without the matrix: gains only fall, so an old gain is a bound, and only candidates whose bound is on top are
    computed anew, a batch of rows at a time (Minoux's lazy greedy)."""
    _check(None, weights)
    n, device = len(similarity), similarity.unit.device
    weights = weights.to(device, exact(device))
    everything = (weights @ similarity.own.to(weights)).item()
    goal = goal_of(share, everything)
    noise = ties.NOISE * similarity.own[weights > 0].max().item()
    everyone = torch.arange(n, device=device)
    covered = _uncovered(weights)
    bounds = torch.cat([similarity.rows(batch).to(weights) @ weights for batch in everyone.split(STALE)])
    fresh = torch.ones_like(weights, dtype=torch.bool)
    order: list[int] = []
    gains: list[float] = []
    reached, behind = 0.0, 0.0

    def refresh(candidates: Tensor) -> None:
        bounds[candidates] = _gains(similarity.rows(candidates).to(weights) - covered, weights, noise)
        fresh[candidates] = True

    while len(order) < limit and reached < goal:
        best = bounds.argmax()
        top = bounds[best]
        if top <= 0:
            break
        if not fresh[best]:
            likely = bounds.topk(min(STALE, n - len(order))).indices  # without `best` where more than these tie with it
            refresh(torch.cat((best[None], likely[~fresh[likely]])))
            continue
        row = similarity.rows(best[None])[0].to(weights)
        raised = (row - covered > noise).to(weights) @ weights
        tied = ties.tied(bounds, top, noise * raised, row >= row[best] - noise)
        if not fresh[tied].all():
            refresh(everyone[tied & ~fresh])
            continue
        pick = ties.first(tied)
        if pick != best:
            row = similarity.rows(pick)[0].to(weights)
        rise = (row - covered).clamp_min_(0)
        covered += rise
        order.append(int(pick))
        gains.append((rise @ weights).item())
        reached += gains[-1]
        behind += max(0.0, top.item() - gains[-1])
        fresh[:] = False
        bounds[pick] = -math.inf
    if goal == math.inf:
        left = everyone[bounds > -math.inf][: limit - len(order)].tolist()
        order += left
        gains += [0.0] * len(left)
        bounds[left] = -math.inf
    # Stale bounds are too large, never too small: good for an upper bound, but the largest are worth computing.
    most = min(len(order), n - len(order))
    for batch in bounds.topk(most).indices.split(STALE):
        refresh(batch)
    ahead = (bounds.topk(most).values.sum() + noise * weights.sum()).item()
    return torch.tensor(order, device=device), weights.new_tensor(gains), everything, ahead, behind
