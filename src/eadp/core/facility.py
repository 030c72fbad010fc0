"""Facility location (Eq. 13): pick the K tokens that best represent the whole weighted image.

The objective F(Y) = Σ_j ŝ_j · max_{i∈Y} Sim_ij is monotone and submodular, so the greedy algorithm reaches at least
1 − 1/e of the optimum. Four solvers make the same picks: `numba` (on the CPU, incremental), `triton` (on CUDA and ROCm,
all picks in one launch), `torch` (on any device) and `rows` (without an N×N matrix in memory).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eadp.core import checks, ties
from eadp.core.backends import BACKENDS, choose_backend
from eadp.core.batched import solve_facility
from eadp.core.device_tables import numbers_on_device
from eadp.core.similarity import LazySimilarity, highest_precision
from eadp.core.solution import Solution

BOUND_MARGIN = 1e-9
"""Share of F(all tokens) that is added to the bound, so that it holds in spite of rounding."""

ROWS_BATCH = 64
"""Candidates whose gains the rows solver computes at a time."""


@dataclass(frozen=True)
class FacilityLocationResult:
    """The tokens that the greedy algorithm picked, and how good they are.

    Attributes:
        indices: K, the picked tokens, in the order of picking.
        gains: K, float64, the marginal gain of each pick (Eq. 14). 0 where nothing was left to gain.
        coverage: How much of the image the picks represent, in [0, 1]: 0 is the best single token, 1 is all tokens; see
            `coverage_of`.
        bound: Upper bound on the coverage of any K tokens. The picks reach at least coverage / bound of the optimum.
        single_objective: F(best single token), where `coverage` and `bound` are 0. Over several blocks, the sum over
            the best token of each block.
        full_objective: F(all tokens), where they are 1.
    """

    indices: Tensor
    gains: Tensor
    coverage: float
    bound: float
    single_objective: float
    full_objective: float


def facility_location(
    similarity: Tensor | LazySimilarity,
    weights: Tensor,
    keep: int | None = None,
    coverage: float | None = None,
    *,
    symmetric: bool | None = None,
    backend: str = "auto",
) -> FacilityLocationResult:
    """Maximize F(Y) = Σ_j w_j · max_{i∈Y} S_ij greedily (Eq. 13).

    Each step picks the token u with the largest gain Σ_j w_j · max(0, S_uj − C_j) (Eq. 14), then updates the coverage
    C ← max(C, S_u). Ties go to the lowest index. Once no similarity exceeds the coverage by more than rounding, the
    remaining tokens follow in the order of their indices; see `core.ties`.

    Args:
        similarity: S, N×N, finite and at least 0; or a `LazySimilarity`.
        weights: w, N, finite and at least 0, not all 0. For EADP the polarized score ŝ.
        keep: Number of tokens to pick.
        coverage: Pick only as many tokens as reach this coverage, in (0, 1]: 0 is what the best single token
            represents, 1 is everything. Together with `keep`, at most `keep`.
        symmetric: Whether the matrix equals its transpose, as the one of `token_similarity` does. None to check.
        backend: `numba`, `triton`, `torch`, `rows`, or `auto`: rows for a `LazySimilarity`, otherwise numba on the CPU,
            triton on CUDA and ROCm, and torch elsewhere.

    Returns:
        The picks, their gains, the coverage reached, and a bound on the best possible coverage.

    Raises:
        ValueError: If neither `keep` nor `coverage` is given, or an argument is out of range.
        TypeError: If `keep` is not an int.
    """
    checks.known("backend", backend, BACKENDS)
    n = len(similarity) if isinstance(similarity, LazySimilarity) else checks.square("similarity", similarity)
    if keep is None and coverage is None:
        raise ValueError("give keep= (how many tokens), coverage= (the share to reach), or both")
    if keep is not None:
        checks.count("keep", keep, n)
    if coverage is not None:
        checks.share("coverage", coverage)
    if weights.shape != (n,):
        raise ValueError(f"weights must have one value for each of the {n} tokens, got shape {tuple(weights.shape)}")
    if backend != "auto" and isinstance(similarity, LazySimilarity) != (backend == "rows"):
        raise ValueError(
            f"backend {backend!r} does not accept a {type(similarity).__name__}: 'rows' takes a LazySimilarity, "
            "the others take a matrix"
        )

    limit, target = n if keep is None else keep, math.inf if coverage is None else coverage
    weights = weights.detach()
    if isinstance(similarity, LazySimilarity):
        solution = _solve_by_rows(similarity, weights, limit, target)
    else:
        similarity = similarity.detach()
        backend = choose_backend(backend, similarity.device)
        if backend == "numba":
            solution = _solve_numba(similarity, weights, limit, target, symmetric)
        else:
            solution = _solve_on_device(similarity, weights, limit, target, symmetric, backend)
    return result_of(solution)


def result_of(solution: Solution) -> FacilityLocationResult:
    """Compute the coverage and its bound from what a solver returned."""
    order, gains, full_objective, remaining_gain, tie_loss = solution
    objective, single_objective = gains.sum().item(), gains[0].item()
    # Upper bounds on F of any K tokens; docs/methods/selection.md has the proofs.
    by_gains = objective + remaining_gain + BOUND_MARGIN * full_objective
    highest = min(by_gains, _greedy_guarantee(objective + tie_loss, single_objective, len(order)))
    reached = coverage_of(objective, single_objective, full_objective)
    bound = max(reached, coverage_of(highest, single_objective, full_objective))
    return FacilityLocationResult(order, gains, reached, bound, single_objective, full_objective)


def coverage_of(objective: float, single_objective: float, full_objective: float) -> float:
    """Return the coverage of tokens whose objective is F(Y): (F(Y) − F(single)) / (F(all) − F(single)), at least 0.

    0 is what the best single token represents (over several blocks, the best single token of each), 1 is everything.
    Where one token represents everything, up to rounding, it covers everything.

    Args:
        objective: F(Y).
        single_objective: F(best single token), summed over blocks.
        full_objective: F(all tokens), summed over blocks.

    Returns:
        The coverage, in [0, 1].
    """
    allowance = _rounding_allowance(full_objective)
    if full_objective - single_objective <= allowance:
        return float(objective >= single_objective - allowance)
    return min(1.0, max(0.0, (objective - single_objective) / (full_objective - single_objective)))


def objective_goal(coverage: float, single_objective: float, full_objective: float) -> float:
    """Return the value of F at which a coverage counts as reached, allowing for rounding; ∞ for a coverage of ∞."""
    if coverage == math.inf:
        return math.inf
    goal = single_objective + coverage * (full_objective - single_objective)
    return goal - _rounding_allowance(full_objective)


def goal_shares(coverage: float) -> tuple[float, float]:
    """Return the goal of `objective_goal` as shares of F(all tokens) and of F(best single token)."""
    return objective_goal(coverage, 0.0, 1.0), 1 - coverage


def _rounding_allowance(full_objective: float) -> float:
    """How much of F may be missing through rounding.

    It is twice `ROUNDING_NOISE`, because a token of zero norm has a similarity of only 0.5 to itself.
    """
    return 2 * ties.ROUNDING_NOISE * full_objective


def _greedy_guarantee(objective: float, single_objective: float, picks: int) -> float:
    """Return the most that F of any K tokens can be if the greedy algorithm reached `objective` with K picks."""
    if picks == 1:
        return objective
    return single_objective + (objective - single_objective) / (1 - (1 - 1 / picks) ** (picks - 1))


def check_weights(weights: Tensor) -> None:
    """Raise ValueError if weights are not finite, negative, or all 0."""
    checks.finite("weights", weights)
    if weights.min() < 0:
        where = int(weights.argmin())
        raise ValueError(f"weights must be 0 or more, but weights[{where}] is {weights[where].item():.6g}")
    if not weights.any():
        raise ValueError("weights are all 0: there is nothing to cover. Equal weights (ones) cover the image evenly")


def _check_values(similarity: Tensor, weights: Tensor) -> None:
    """Raise ValueError if weights or similarities are not finite, negative, or all 0."""
    check_weights(weights)
    checks.finite("similarity", similarity)
    if similarity.min() < 0:
        i, j = divmod(int(similarity.argmin()), len(similarity))
        raise ValueError(
            f"similarity must be 0 or more, but similarity[{i}, {j}] is {similarity[i, j].item():.6g}; "
            "core.token_similarity maps cosines to [0, 1]"
        )
    if not (similarity.amax(dim=0).double() @ weights.double()) > 0:
        raise ValueError("similarity is 0 for every token with a weight above 0: no token represents anything")


def _initial_coverage(weights: Tensor) -> Tensor:
    """Coverage before the first pick: 0, but ∞ for tokens without weight, so that covering them gains nothing."""
    return torch.zeros_like(weights).masked_fill_(weights == 0, math.inf)


def _gains_from_rises(rises: Tensor, weights: Tensor, noise: float) -> Tensor:
    """Gain of each candidate from its row of S − C, which is clamped in place; 0 if nothing rises above the noise."""
    return torch.mv(rises.clamp_min_(0), weights).masked_fill_(rises.amax(dim=1) <= noise, 0)


def _solve_numba(similarity: Tensor, weights: Tensor, limit: int, target: float, symmetric: bool | None) -> Solution:
    """Solve on the CPU, updating the gains column by column instead of recomputing them."""
    from eadp.core.kernels import facility_greedy, is_symmetric

    if similarity.dtype not in (torch.float32, torch.float64):
        similarity = similarity.float()
    rows = np.ascontiguousarray(similarity.cpu().numpy())
    if symmetric is None:
        symmetric = is_symmetric(rows)
    columns = rows if symmetric else np.ascontiguousarray(rows.T)
    w = weights.double().cpu().numpy()
    highest = rows.max(axis=0)
    full_objective = float(w @ highest)
    if not (rows.min() >= 0 and w.min() >= 0 and 0 < full_objective < math.inf):
        _check_values(similarity, weights)
    noise = ties.ROUNDING_NOISE * float(highest[w > 0].max())
    # The goal depends on the first pick: goal(single) = goal(0) + (1 − target) · single.
    goal, single_share = objective_goal(target, 0.0, full_objective), max(0.0, 1 - target)
    order, gains, remaining, tie_loss = facility_greedy(
        rows, columns, w, limit, goal, single_share, noise, ties.TIE_MARGIN
    )
    device, remaining_gain = similarity.device, remaining + noise * float(w.sum())
    return Solution(
        torch.from_numpy(order).to(device), torch.from_numpy(gains).to(device), full_objective, remaining_gain, tie_loss
    )


def _solve_on_device(
    similarity: Tensor, weights: Tensor, limit: int, target: float, symmetric: bool | None, backend: str
) -> Solution:
    """Solve by Triton or torch. The results are read back once, after the last pick."""
    n, device = len(similarity), similarity.device
    sizes, limits = numbers_on_device((n,), device), numbers_on_device((limit,), device)
    goal = None
    if target < math.inf:
        goal = numbers_on_device(goal_shares(target), device, highest_precision(device))[None]
    matrices, weights_row = similarity[None], weights.to(device)[None]
    if backend == "triton":
        from eadp.core.triton.facility import solve

        found = solve(matrices, weights_row, sizes, limits, goal, limit, symmetric=bool(symmetric))
    else:
        found = solve_facility(matrices, weights_row, sizes, limits, goal, limit)
    (solution,), _ = found.read(weights_row)
    if not 0 < solution.full_objective < math.inf:
        _check_values(similarity, weights)
    return solution._replace(order=solution.order.to(device), gains=solution.gains.to(device))


def _solve_by_rows(similarity: LazySimilarity, weights: Tensor, limit: int, target: float) -> Solution:
    """Solve without the matrix, by Minoux's lazy greedy algorithm.

    Gains only fall, so an outdated gain is an upper bound. Only candidates whose bound is the largest are computed
    again, one batch of rows at a time.
    """
    check_weights(weights)
    n, device = len(similarity), similarity.unit_features.device
    weights = weights.to(device, highest_precision(device))
    full_objective = (weights @ similarity.diagonal.to(weights)).item()
    noise = ties.ROUNDING_NOISE * similarity.diagonal[weights > 0].max().item()
    tokens = torch.arange(n, device=device)
    covered = _initial_coverage(weights)
    bounds = torch.cat([similarity.rows(batch).to(weights) @ weights for batch in tokens.split(ROWS_BATCH)])
    is_current = torch.ones_like(weights, dtype=torch.bool)
    order: list[int] = []
    gains: list[float] = []
    goal, reached, tie_loss = math.inf, 0.0, 0.0

    def refresh(candidates: Tensor) -> None:
        rises = similarity.rows(candidates).to(weights) - covered
        bounds[candidates] = _gains_from_rises(rises, weights, noise)
        is_current[candidates] = True

    while len(order) < limit and reached < goal:
        best = bounds.argmax()
        best_gain = bounds[best]
        if best_gain <= 0:
            break
        if not is_current[best]:
            # Where more candidates tie than fit into the batch, the batch may lack `best`.
            likely = bounds.topk(min(ROWS_BATCH, n - len(order))).indices
            refresh(torch.cat((best[None], likely[~is_current[likely]])))
            continue
        row = similarity.rows(best[None])[0].to(weights)
        raised_weight = (row - covered > noise).to(weights) @ weights
        tied = ties.find_ties(bounds, best_gain, noise * raised_weight, row >= row[best] - noise)
        if not is_current[tied].all():
            refresh(tokens[tied & ~is_current])
            continue
        pick = ties.first_true(tied)
        if pick != best:
            row = similarity.rows(pick)[0].to(weights)
        rise = (row - covered).clamp_min_(0)
        covered += rise
        order.append(int(pick))
        gains.append((rise @ weights).item())
        reached += gains[-1]
        goal = objective_goal(target, gains[0], full_objective)
        tie_loss += max(0.0, best_gain.item() - gains[-1])
        is_current[:] = False
        bounds[pick] = -math.inf
    if target == math.inf:
        rest = tokens[bounds > -math.inf][: limit - len(order)].tolist()
        order += rest
        gains += [0.0] * len(rest)
        bounds[rest] = -math.inf
    # Outdated bounds are never too small, so they are valid here. Refreshing the largest makes the result tighter.
    count = min(len(order), n - len(order))
    for batch in bounds.topk(count).indices.split(ROWS_BATCH):
        refresh(batch)
    remaining_gain = (bounds.topk(count).values.sum() + noise * weights.sum()).item()
    picks = torch.tensor(order, device=device)
    return Solution(picks, weights.new_tensor(gains), full_objective, remaining_gain, tie_loss)
