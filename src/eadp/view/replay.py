"""Replay a selection pick by pick: which tokens each pick represents, and how much coverage it adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eadp.core import LazySimilarity, coverage_of


@dataclass(frozen=True)
class Replay:
    """K picks among N tokens, and the E changes of representatives that they cause.

    Change e: at pick `steps[e]`, the token `tokens[e]` gets a better representative, with similarity `similarity[e]`.
    Few tokens change after the first picks, so E grows like N·log K rather than N·K.

    Attributes:
        order: K, the picks in order; sorted by index if the method selects all tokens at once.
        steps: E, ascending, the pick of each change.
        tokens: E, the token of each change.
        similarity: E, the similarity of that token to the pick.
        coverage: K, float64, the coverage of the first k picks (`core.coverage_of`), with EADP's weights for every
            method.
    """

    order: Tensor
    steps: Tensor
    tokens: Tensor
    similarity: Tensor
    coverage: Tensor


def replay_picks(
    features: Tensor, weights: Tensor, blocks: Sequence[slice], order: Tensor | None, indices: Tensor
) -> Replay:
    """Replay the picks of a method.

    A token can only represent tokens of its own block, as in `facility_location_by_quota`.

    Args:
        features: N×d, the visual tokens.
        weights: N, EADP's weights.
        blocks: The tokens of each block.
        order: K, the kept tokens in the order of picking; None if the method selects all at once.
        indices: K, the kept tokens in ascending order.
    """
    order = (indices if order is None else order).cpu()
    gains = torch.zeros(len(order), dtype=torch.float64)
    changes: list[Tensor] = []
    similarities: list[Tensor] = []
    single_objective = full_objective = 0.0
    for block in blocks:
        similarity = LazySimilarity.from_features(features[block])
        weight = weights[block].detach().cpu().double()
        single_objective += similarity.single_objectives(weights[block]).max().item()
        full_objective += float(weight @ similarity.diagonal.cpu().double())
        steps = ((order >= block.start) & (order < block.stop)).nonzero().flatten()
        covered = torch.zeros_like(weight)
        for step in steps.tolist():
            pick = (order[step : step + 1] - block.start).to(similarity.unit_features.device)
            row = similarity.rows(pick)[0].cpu()
            better = (row > covered).nonzero().flatten()
            gains[step] = weight[better] @ (row[better].double() - covered[better])
            covered[better] = row[better].double()
            changes.append(torch.stack([torch.full_like(better, step), better + block.start]))
            similarities.append(row[better])
    steps_and_tokens = torch.cat(changes, dim=1)
    by_step = steps_and_tokens[0].argsort(stable=True)
    coverage = [coverage_of(each, single_objective, full_objective) for each in gains.cumsum(0).tolist()]
    steps, tokens = steps_and_tokens[:, by_step]
    return Replay(order, steps, tokens, torch.cat(similarities)[by_step], gains.new_tensor(coverage))
