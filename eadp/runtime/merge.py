"""Kept tokens that absorb others: new row k = Σ_j weights[k, j] · row j, and Σ_e weights[k, N + e] · extra e."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eadp.runtime.compact import Compaction


@dataclass(frozen=True)
class Merge:
    """In one row of the batch: the N columns of a picture's tokens, the K that stay, and K×N weights.

    extra: E×d, tokens without a column, where the weights are K×(N + E). deepstack: E×d, their rows in each layer that
    has some; none where they have nothing to add there.
    """

    row: int
    columns: Tensor
    kept: Tensor
    weights: Tensor
    extra: Tensor | None = None
    deepstack: Sequence[Tensor] = ()

    def onto(self, rows: Tensor, extra: Tensor | None = None) -> Tensor:
        """The K new rows from the N old ones (and the E extra ones)."""
        weights = self.weights.to(rows)
        if weights.shape[1] == len(rows):
            return weights @ rows
        if extra is None:
            return weights[:, : len(rows)] @ rows
        return weights @ torch.cat([rows, extra.to(rows)])


def merged(hidden: Tensor, merges: list[Merge]) -> Tensor:
    """B×L×d with the new rows in place of the kept ones."""
    if not merges:
        return hidden
    hidden = hidden.clone()
    for merge in merges:
        rows = hidden[merge.row, merge.columns.to(hidden.device)]
        hidden[merge.row, merge.kept.to(hidden.device)] = merge.onto(rows, merge.extra)
    return hidden


def deepstack(
    there: Tensor, layers: list[Tensor], merges: list[Merge], plan: Compaction
) -> tuple[Tensor, list[Tensor]]:
    """What a model adds to its visual tokens again in its first layers, for the tokens that stay.

    there: B×L, where the visual tokens are. layers: each V×d, one row for each of them, row by row of the batch.
    """
    number = there.flatten().cumsum(0).view_as(there) - 1
    stayed = plan.columns(there)
    if plan.valid is not None:
        stayed = stayed & plan.valid.to(there.device)
    left = plan.columns(number)[stayed]
    shortened = []
    for index, layer in enumerate(layers):
        if merges:
            layer = layer.clone()
            for merge in merges:
                source = number[merge.row, merge.columns.to(there.device)].to(layer.device)
                target = number[merge.row, merge.kept.to(there.device)].to(layer.device)
                extra = merge.deepstack[index] if merge.deepstack else None
                layer[target] = merge.onto(layer[source], extra)
        shortened.append(layer[left.to(layer.device)])
    return stayed, shortened
