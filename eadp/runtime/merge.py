"""Kept tokens that absorb others: new row k = Σ_j weights[k, j] · row j."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from eadp.runtime.compact import Compaction


@dataclass(frozen=True)
class Merge:
    """In one row of the batch: the N columns of a picture's tokens, the K that stay, and K×N weights."""

    row: int
    columns: Tensor
    kept: Tensor
    weights: Tensor


def merged(hidden: Tensor, merges: list[Merge]) -> Tensor:
    """B×L×d with the new rows in place of the kept ones."""
    if not merges:
        return hidden
    hidden = hidden.clone()
    for merge in merges:
        rows = hidden[merge.row, merge.columns.to(hidden.device)]
        hidden[merge.row, merge.kept.to(hidden.device)] = merge.weights.to(rows) @ rows
    return hidden


def deepstack(
    there: Tensor, layers: list[Tensor], merges: list[Merge], plan: Compaction, keep: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """What a model adds to its visual tokens again in its first layers, for the tokens that stay.

    there: B×L, where the visual tokens are. layers: each V×d, one row for each of them, row by row of the batch.
    keep:  B×L.
    """
    keep = keep.to(there.device)
    number = there.flatten().cumsum(0).view_as(there) - 1
    shortened = []
    for layer in layers:
        if merges:
            layer = layer.clone()
            for merge in merges:
                source = number[merge.row, merge.columns.to(there.device)].to(layer.device)
                target = number[merge.row, merge.kept.to(there.device)].to(layer.device)
                layer[target] = merge.weights.to(layer) @ layer[source]
        shortened.append(layer[keep[there].to(layer.device)])
    there = plan.columns(there)
    return (there if plan.valid is None else there & plan.valid.to(there.device)), shortened
