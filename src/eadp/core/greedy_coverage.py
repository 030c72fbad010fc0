"""Greedy coverage: pick the candidates that together reach the highest values, with a saliency on each candidate.

`facility_location` covers the tokens themselves, each with a weight. Here the rows to cover are any, such as the words
of a question besides the tokens, and the weight is on the candidate.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from eadp.core import checks, ties
from eadp.core.diversity import OrderedPicks
from eadp.core.similarity import highest_precision


def greedy_coverage(
    values: Tensor,
    keep: int,
    *,
    saliency: Tensor | None = None,
    bonus: Tensor | None = None,
    excluded: Tensor | None = None,
) -> OrderedPicks:
    """Pick candidates by gain(j) = a_j · Σ_r max(0, V_jr − C_r) + b_j.

    C_r is what the picks reach in row r, 0 at first. After each pick, C ← max(C, V_j). Ties go to the lowest index, and
    a gain without any rise above rounding counts as b_j alone; see `core.ties`.

    Args:
        values: V, N×R, the value of each of N candidates for each of R rows to cover.
        keep: Number of candidates to pick.
        saliency: a, N, at least 0. Default: 1.
        bonus: b, N, at least 0. Default: 0.
        excluded: N, true for candidates that are picked only if there are not enough others.

    Returns:
        The picks and their gains.

    Raises:
        ValueError: If an argument is out of range, or a value is not finite.
        TypeError: If `keep` is not an int.
    """
    if values.ndim != 2 or 0 in values.shape:
        raise ValueError(f"values must be candidates×rows, at least 1×1, got shape {tuple(values.shape)}")
    total = len(values)
    checks.count("keep", keep, total)
    checks.finite("values", values)
    values = values.detach().to(highest_precision(values.device))
    saliency = values.new_ones(total) if saliency is None else saliency.to(values)
    bonus = values.new_zeros(total) if bonus is None else bonus.to(values)
    for name, given in (("saliency", saliency), ("bonus", bonus)):
        checks.finite(name, given)
        if given.shape != (total,) or bool((given < 0).any()):
            raise ValueError(f"{name} must have one value of at least 0 for each of the {total} candidates")
    # Rows differ in scale: a value is rounded relative to its own row.
    noise = ties.ROUNDING_NOISE * values.abs().amax(dim=0)
    covered = values.new_zeros(values.shape[1])
    closed = values.new_zeros(total)
    order = torch.empty(keep, dtype=torch.long, device=values.device)
    gains, rises = values.new_empty(keep), torch.empty_like(values)
    no_copies = torch.zeros(total, dtype=torch.bool, device=values.device)
    last_resort = torch.finfo(values.dtype).max
    if excluded is not None:
        closed.masked_fill_(excluded.to(values.device), -last_resort)
    for step in range(keep):
        torch.sub(values, covered, out=rises)
        rises.masked_fill_(rises <= noise, 0)
        gain = saliency * rises.sum(1) + bonus
        candidates = torch.where(closed < 0, closed, gain)
        best = candidates.max(dim=0, keepdim=True).values
        tied = torch.where(best >= 0, ties.find_ties(candidates, best, 0.0, no_copies), candidates == best)
        pick = ties.first_true(tied)
        order[step : step + 1] = pick
        gains[step : step + 1] = gain[pick]
        torch.maximum(covered, values.index_select(0, pick)[0], out=covered)
        closed.index_fill_(0, pick, -math.inf)
    return OrderedPicks(order, gains)
