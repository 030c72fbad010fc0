"""The merged rows of all images of a batch at once, on a device that Triton compiles for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eadp.core.backends import choose_backend
from eadp.methods.base import Positions
from eadp.runtime.compact import Compaction
from eadp.runtime.merge import Merge

if TYPE_CHECKING:
    from eadp.core.triton.row_mixing import Places, RowMixer


@dataclass(frozen=True)
class MergeBatch:
    """The merges of a batch of prompts, with the columns that their rows fill.

    Attributes:
        merges: The merges.
        mixer: Their weights.
        places: The physical columns that the new rows fill.
    """

    merges: Sequence[Merge]
    mixer: RowMixer
    places: Places

    @classmethod
    def of(
        cls,
        merges: Sequence[Merge],
        chosen: Tensor | None,
        plan: Compaction,
        positions: Positions,
        states: Sequence[Tensor],
    ) -> MergeBatch | None:
        """Gather the merges of a batch.

        Args:
            merges: The merges.
            chosen: The kept columns of all choices, as positions among the columns of all rows of the batch; None where
                the host has read them.
            plan: Which columns stay.
            positions: Whether merged rows are renumbered.
            states: The rows that will be merged besides those of the tower.

        Returns:
            None where the merges must be applied one by one: where there is no Triton, where the inputs are on
            different devices or need gradients, and where each row takes the position of its token.
        """
        if not merges or chosen is None or choose_backend("auto", chosen.device) != "triton":
            return None
        towers = [part for merge in merges if merge.tower for part in (merge.tower.rows, merge.tower.cls)]
        extra = [part for merge in merges for part in (merge.extra, *merge.deepstack)]
        tensors = [part for part in (*states, *towers, *extra) if part is not None]
        if any(part.device != chosen.device for part in tensors) or (
            torch.is_grad_enabled() and any(part.requires_grad for part in tensors)
        ):
            return None
        length = plan.fill.shape[1]
        columns = [merge.row * length + merge.columns for merge in merges]
        if any(merge.rows is not None for merge in merges):
            if positions == "keep":
                return None
            # The rows of an image fill its columns from left to right.
            if any(bool((each.diff() < 0).any()) for each in columns):
                ends = [(int(each.amin()), int(each.amax())) for each in columns]
                has_others = sum(len(merge.indices) for merge in merges) < len(chosen)
                if has_others or any(end >= start for (_, end), (start, _) in pairwise(ends)):
                    return None
                chosen = chosen.sort().values
        return cls(merges, _mixer(merges, columns, chosen.device), _places(chosen, plan))

    def apply(self, hidden: Tensor, plan: Compaction) -> Tensor:
        """Keep the physical columns, with the merged rows in theirs: B×L×d → B×P×d."""
        flat, kept = hidden.flatten(0, 1), plan.take_rows(hidden).contiguous()
        out, (first, *_) = kept.flatten(0, 1), self.merges
        if first.tower is None or first.project is None:
            extra = _joined([merge.extra for merge in self.merges])
            self.mixer.mix(flat, extra, out, self.places, by_column=True)
            return kept
        towers = [merge.tower for merge in self.merges if merge.tower is not None]
        rows, classes = _joined([tower.rows for tower in towers]), _joined([tower.cls for tower in towers])
        assert rows is not None
        sums = self.mixer.new_rows(rows)
        self.mixer.mix(rows, classes, sums, None, by_column=False)
        self.mixer.place(first.project(sums), flat, out, self.places)
        return kept

    def apply_to_visual(
        self, layers: Sequence[Tensor], left: Tensor, number: Tensor, still_visual: Tensor
    ) -> list[Tensor]:
        """Shorten rows of visual tokens, with the merged rows in theirs.

        Args:
            layers: V×d for each layer.
            left: The visual tokens that stay.
            number: B×L, the number of the visual token at each column.
            still_visual: B×P, true for the visual tokens that stay.
        """
        together = torch.cat(list(layers), dim=1)
        shortened = together[left]
        extra = [None if not merge.deepstack else torch.cat(list(merge.deepstack), dim=1) for merge in self.merges]
        places = replace(self.places, numbers=still_visual.flatten().cumsum(0))
        self.mixer.mix(
            together, _joined(extra), shortened, places, by_column=True, visual_numbers=number.flatten().contiguous()
        )
        return list(shortened.split([layer.shape[1] for layer in layers], dim=1))


def _mixer(merges: Sequence[Merge], columns: Sequence[Tensor], device: torch.device) -> RowMixer:
    from eadp.core.triton.row_mixing import RowMixer

    table, row, begin, token, more = list[int](), 0, 0, 0, 0
    for merge in merges:
        (count, width), size = merge.weights.shape, len(merge.columns)
        table += [row, count, begin, size, width - size, token, more, merge.first_kept]
        row, begin, token, more = row + count, begin + count * width, token + size, more + width - size
    weights = _joined([merge.weights.float().flatten() for merge in merges])
    assert weights is not None
    counts = tuple(len(merge.weights) for merge in merges)
    return RowMixer(weights, torch.tensor(table).to(device), counts, torch.cat(list(columns)).to(device))


def _places(chosen: Tensor, plan: Compaction) -> Places:
    from eadp.core.triton.row_mixing import Places

    return Places(chosen, plan.fill.flatten(), plan.fill.shape[1], plan.length)


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Join what all have; None where one has none."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    joined = known[0] if len(known) == 1 else torch.cat(known)
    return joined if joined.stride(-1) == 1 else joined.contiguous()
