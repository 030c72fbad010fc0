"""The picks once more, one after the other: whom each new token represents, and what that adds to the coverage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eadp.core import LazySimilarity


@dataclass(frozen=True)
class Replay:
    """K picks over N tokens.

    order:      K, the picks; sorted by index where the method took all at once.
    steps:      E, ascending; at pick `steps[e]` the token `tokens[e]` found a better representative than it had, alike
                to it by `similarity[e]`. After the first picks few tokens change: E is nearer to N·log K than to N·K.
    coverage:   K, float64, F(first k picks) / F(all): facility location with EADP's weights, whichever method picked.
    """

    order: Tensor
    steps: Tensor
    tokens: Tensor
    similarity: Tensor
    coverage: Tensor


def replay(features: Tensor, weights: Tensor, blocks: Sequence[slice], order: Tensor | None, indices: Tensor) -> Replay:
    """Tokens represent tokens of their own block, as in `facility_location_by_quota`."""
    order = (indices if order is None else order).cpu()
    gains = torch.zeros(len(order), dtype=torch.float64)
    events: list[Tensor] = []
    alike: list[Tensor] = []
    everything = 0.0
    for block in blocks:
        rows = LazySimilarity.from_features(features[block])
        weight = weights[block].detach().cpu().double()
        everything += float(weight @ rows.diagonal.cpu().double())
        steps = ((order >= block.start) & (order < block.stop)).nonzero().flatten()
        covered = torch.zeros_like(weight)
        for step in steps.tolist():
            similar = rows.rows((order[step : step + 1] - block.start).to(rows.unit_features.device))[0].cpu()
            better = (similar > covered).nonzero().flatten()
            gains[step] = weight[better] @ (similar[better].double() - covered[better])
            covered[better] = similar[better].double()
            events.append(torch.stack([torch.full_like(better, step), better + block.start]))
            alike.append(similar[better])
    changes = torch.cat(events, dim=1)
    by_step = changes[0].argsort(stable=True)
    coverage = (gains.cumsum(0) / everything).clamp_max(1)
    return Replay(order, changes[0, by_step], changes[1, by_step], torch.cat(alike)[by_step], coverage)
