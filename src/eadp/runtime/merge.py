"""Kept tokens that absorb others: new row k = Σ_j weights[k, j] · row j, and Σ_e weights[k, N + e] · extra e.

What is summed are rows as the language model would receive them, or rows of the vision tower, which the model's own
projector takes afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eadp.methods.base import Positions
from eadp.models.family import TowerRows
from eadp.runtime.compact import Compaction


@dataclass(frozen=True)
class Merge:
    """In one row of the batch: the N columns of a picture's tokens, the K that the new rows fill, and K×N weights.

    extra: E×d, tokens without a column, where the weights are K×(N + E). deepstack: E×d, their rows in each layer that
    has some; none where they have nothing to add there.
    rows:  K, which token each new row stands for, in the language model's order, −1 for none; None: row k fills
           kept[k].
    tower: the tokens before the projector, where they are merged there. Weights beyond N are then for its CLS rows.
    """

    row: int
    columns: Tensor
    kept: Tensor
    weights: Tensor
    extra: Tensor | None = None
    deepstack: Sequence[Tensor] = ()
    rows: Tensor | None = None
    tower: TowerRows | None = None

    def placed(self, positions: Positions) -> Merge:
        """With `kept` in the order of the rows. Renumbered, they fill the columns from left to right. Where positions
        stay, a row takes the column of the token that it stands for, and one that stands for none what is left."""
        if self.rows is None:
            return self
        columns = self.kept.sort().values
        if positions == "keep":
            own = self.rows >= 0
            free = columns[~torch.isin(columns, self.columns[self.rows[own]])]
            columns = torch.empty_like(columns)
            columns[own], columns[~own] = self.columns[self.rows[own]], free
        return replace(self, kept=columns)

    def onto(self, rows: Tensor, extra: Tensor | None = None) -> Tensor:
        """The K new rows from the N old ones (and the E extra ones)."""
        weights = self.weights.to(rows)
        if weights.shape[1] == len(rows):
            return weights @ rows
        if extra is None:
            return weights[:, : len(rows)] @ rows
        return weights @ torch.cat([rows, extra.to(rows)])

    def received(self, rows: Tensor) -> Tensor:
        """K×d, what the language model gets in place of its N rows. A token that absorbs nothing is as it was, bit for
        bit; before the projector, only the others are projected."""
        if self.tower is None:
            return self.onto(rows, self.extra)
        weights = self.weights.float().to(self.tower.rows.device)
        own = weights[:, : len(rows)].max(1)
        mixed = (own.values != 1) | ((weights != 0).sum(1) != 1)
        received = rows[own.indices.to(rows.device)]
        if bool(mixed.any()):
            sources = self.tower.rows if self.tower.cls is None else torch.cat([self.tower.rows, self.tower.cls])
            mixtures = weights[mixed] @ sources[: weights.shape[1]].float()
            received[mixed.to(rows.device)] = self.tower.project(mixtures.to(sources.dtype)).to(rows)
        return received


def merged(hidden: Tensor, merges: list[Merge]) -> Tensor:
    """B×L×d with the new rows in place of the kept ones."""
    if not merges:
        return hidden
    hidden = hidden.clone()
    for merge in merges:
        rows = hidden[merge.row, merge.columns.to(hidden.device)]
        hidden[merge.row, merge.kept.to(hidden.device)] = merge.received(rows)
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
