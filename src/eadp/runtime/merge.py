"""Kept tokens that absorb others: new row k = Σ_j weights[k, j] · row j + Σ_e weights[k, N + e] · extra row e.

The sums are over rows as the language model would receive them, or over rows of the vision tower, which the model's own
projector takes afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eadp.methods.base import Positions
from eadp.models.vision_call import TowerRows
from eadp.runtime.compact import Compaction


@dataclass(frozen=True)
class Merge:
    """The K merged rows of one image (or of images that share a budget) in one row of the batch.

    Attributes:
        row: The row of the batch.
        columns: The N columns of the image's tokens.
        indices: K, which of these columns the merged rows fill.
        weights: K×N, or K×(N + E) where E extra rows take part.
        extra: E×d, rows without a column.
        deepstack: E×d for each DeepStack layer: the extra rows there. Empty: they add nothing there.
        rows: K, the token that each merged row stands for, in the language model's order, or −1. None: row k fills
            kept[k].
        tower: The tokens before the projector, if they are merged there. The extra rows are then its CLS rows.
        project: The model's projector, K×w → K×d; with `tower` only.
        first_kept: How many columns of the merges and choices before this one are kept.
        filled: K, the column that each row fills, if not those of `indices` in their order.
    """

    row: int
    columns: Tensor
    indices: Tensor
    weights: Tensor
    extra: Tensor | None = None
    deepstack: Sequence[Tensor] = ()
    rows: Tensor | None = None
    tower: TowerRows | None = None
    project: Callable[[Tensor], Tensor] | None = None
    first_kept: int = 0
    filled: Tensor | None = None

    @property
    def kept(self) -> Tensor:
        """K, the column that each row fills."""
        return self.columns.to(self.indices.device)[self.indices] if self.filled is None else self.filled

    def with_columns(self, positions: Positions) -> Merge:
        """Return the merge with the columns in the order of its rows.

        Args:
            positions: "renumber": the rows fill the columns from left to right. "keep": a row takes the column of the
                token that it stands for, and a row that stands for none takes a column that is left.
        """
        if self.rows is None:
            return self
        columns = self.kept.sort().values
        if positions == "keep":
            rows = self.rows.cpu()
            own, columns = rows >= 0, columns.cpu()
            free = columns[~torch.isin(columns, self.columns[rows[own]])]
            columns = torch.empty_like(columns)
            columns[own], columns[~own] = self.columns[rows[own]], free
        return replace(self, filled=columns)

    def mix(self, rows: Tensor, extra: Tensor | None = None) -> Tensor:
        """Compute the weighted sums.

        Args:
            rows: N×d.
            extra: E×d. None: the extra rows count as zero.

        Returns:
            K×d.
        """
        weights = self.weights.to(rows)
        if weights.shape[1] == len(rows):
            return weights @ rows
        if extra is None:
            return weights[:, : len(rows)] @ rows
        return weights @ torch.cat([rows, extra.to(rows)])

    def merged_rows(self, rows: Tensor) -> Tensor:
        """Compute the rows that the language model gets.

        A token that absorbs nothing keeps its row, bit for bit. Before the projector, on the CPU only the others are
        projected.

        Args:
            rows: N×d, the rows that it would get without merging.

        Returns:
            K×d.
        """
        if self.tower is None or self.project is None:
            return self.mix(rows, self.extra)
        weights = self.weights.float().to(self.tower.rows.device)
        largest = weights[:, : len(rows)].max(1)
        is_mixed = (largest.values != 1) | ((weights != 0).sum(1) != 1)
        merged = rows[largest.indices.to(rows.device)]
        sources = self.tower.rows if self.tower.cls is None else torch.cat([self.tower.rows, self.tower.cls])
        if is_mixed.device.type != "cpu":
            # Only the device knows which are mixed, so all are projected.
            mixtures = weights @ sources[: weights.shape[1]].float()
            projected = self.project(mixtures.to(sources.dtype)).to(rows)
            return torch.where(is_mixed.to(rows.device)[:, None], projected, merged)
        if bool(is_mixed.any()):
            mixtures = weights[is_mixed] @ sources[: weights.shape[1]].float()
            merged[is_mixed.to(rows.device)] = self.project(mixtures.to(sources.dtype)).to(rows)
        return merged


@dataclass(frozen=True)
class Move:
    """Rows of one row of the batch that change places with each other.

    Attributes:
        row: The row of the batch.
        columns: The columns of the rows, in their new order.
    """

    row: int
    columns: Tensor


def apply_moves(hidden: Tensor, moves: list[Move]) -> Tensor:
    """Give the rows their new order within their columns: B×L×d → B×L×d."""
    if not moves:
        return hidden
    moved = hidden.clone()
    for move in moves:
        columns = move.columns.to(hidden.device)
        moved[move.row, columns.sort().values] = hidden[move.row, columns]
    return moved


def apply_merges(hidden: Tensor, merges: list[Merge]) -> Tensor:
    """Replace the rows of the kept columns by merged rows: B×L×d → B×L×d."""
    if not merges:
        return hidden
    hidden = hidden.clone()
    for merge in merges:
        rows = hidden[merge.row, merge.columns.to(hidden.device)]
        hidden[merge.row, merge.kept.to(hidden.device)] = merge.merged_rows(rows)
    return hidden


def shorten_deepstack(
    is_visual: Tensor,
    layers: list[Tensor],
    merges: list[Merge],
    plan: Compaction,
    merge_all: Callable[[list[Tensor], Tensor, Tensor, Tensor], list[Tensor]] | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Shorten the features that a model adds to its visual tokens again in its first layers.

    Args:
        is_visual: B×L, true for the visual tokens.
        layers: V×d for each layer: one row per visual token, row by row of the batch.
        merges: The merged rows.
        plan: Which columns stay.
        merge_all: What shortens the layers and merges their rows at once, in place of `merges`; given the layers, the
            tokens that stay, and the number of each visual token before and whether it stays.

    Returns:
        `is_visual` and `layers` for the columns that stay.
    """
    number = is_visual.flatten().cumsum(0).view_as(is_visual) - 1
    still_visual = plan.take_columns(is_visual)
    if plan.valid is not None:
        still_visual = still_visual & plan.valid.to(is_visual.device)
    left = plan.take_columns(number)
    if plan.removed is None or left.device.type == "cpu":
        left = left[still_visual]
    else:
        # The same without waiting for the device: all columns that were dropped were visual tokens.
        visual_first = still_visual.flatten().to(torch.uint8).argsort(descending=True, stable=True)
        left = left.flatten()[visual_first[: len(layers[0]) - plan.removed]]
    if merge_all is not None:
        return still_visual, merge_all(layers, left, number, still_visual)
    shortened = []
    for index, layer in enumerate(layers):
        if merges:
            layer = layer.clone()
            for merge in merges:
                source = number[merge.row, merge.columns.to(is_visual.device)].to(layer.device)
                target = number[merge.row, merge.kept.to(is_visual.device)].to(layer.device)
                extra = merge.deepstack[index] if merge.deepstack else None
                layer[target] = merge.mix(layer[source], extra)
        shortened.append(layer[left.to(layer.device)])
    return still_visual, shortened
