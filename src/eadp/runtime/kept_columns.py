"""From the tokens that stay to the columns of the prompts that stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from eadp.core import Selection
from eadp.core.deferred import Deferred
from eadp.methods.base import Newlines
from eadp.models.layout import ImageLayout
from eadp.runtime.compact import Compaction
from eadp.runtime.merge import Merge, Move
from eadp.runtime.selections import split_selection
from eadp.runtime.vision_capture import PlacedImage


@dataclass(frozen=True)
class KeptColumns:
    """Which columns of a batch of prompts stay. How many is known on the host, which ones maybe only on the device.

    Attributes:
        keep: B×L, false (or 0, as uint8) for the columns that are dropped, and for padding.
        counts: B, the number of columns that stay.
        tail: How many columns at the end stay in every row, as far as the host knows.
        removed: How many columns of all rows are dropped, padding aside.
        chosen: The columns that were chosen on a device, choice after choice, as positions in the flattened mask; None
            where the host knows them.
    """

    keep: Tensor
    counts: tuple[int, ...]
    tail: int
    removed: int
    chosen: Tensor | None = None

    @classmethod
    def of_known(cls, keep: Tensor, total: int) -> KeptColumns:
        """Describe a mask on the CPU. total: how many columns were not padding before."""
        counts, is_kept = keep.sum(1).tolist(), keep.all(0)
        return cls(keep, tuple(counts), int(is_kept.flip(0).cumprod(0).sum()), total - sum(counts))

    @classmethod
    def of_chosen(cls, known: Tensor, columns: Sequence[Tensor], kept: Sequence[Tensor], total: int) -> KeptColumns:
        """Add to the columns that stay in any case those that were chosen on a device.

        Args:
            known: B×L, on the CPU, false for the columns among which was chosen.
            columns: For each choice, the columns among which was chosen, as positions in the flattened mask.
            kept: For each choice, the indices of those that stay.
            total: How many columns were not padding before.
        """
        rows, length = known.shape
        tail, counts = cls.of_known(known, total).tail, known.sum(1).tolist()
        for choice, indices in zip(columns, kept, strict=True):
            counts[int(choice[0]) // length] += len(indices)
        device = next(indices.device for indices in kept if indices.device.type != "cpu")
        starts = list(accumulate((len(choice) for choice in columns), initial=0))
        positions = torch.cat([indices.to(device) for indices in kept]) if len(kept) > 1 else kept[0].to(device)
        if len(kept) > 1:
            shifts = [torch.full((len(indices),), start) for start, indices in zip(starts, kept, strict=False)]
            positions = positions + torch.cat(shifts).to(device)
        chosen = torch.cat(list(columns)).to(device)[positions]
        keep = known.to(torch.uint8).to(device).flatten().index_fill_(0, chosen, 1).view(rows, length)
        return cls(keep, tuple(counts), tail, total - sum(counts), chosen)

    def repeated(self, times: int) -> KeptColumns:
        """The same columns for each of `times` beams."""
        if times == 1:
            return self
        counts = tuple(count for count in self.counts for _ in range(times))
        keep = self.keep.repeat_interleave(times, dim=0)
        return replace(self, keep=keep, counts=counts, removed=self.removed * times, chosen=None)

    def compaction(self, device: torch.device) -> Compaction:
        """The compaction that keeps these columns."""
        return Compaction.from_counts(self.keep, self.counts, self.tail, self.removed).to(device)


@dataclass(frozen=True)
class Choice:
    """What stays of a batch of prompts.

    Attributes:
        kept: The columns that stay.
        merges: The merged rows.
        selections: One per image.
        valid: B×L, on the CPU, false for padding; None where there is none.
        moves: Newlines that follow the tokens of their frame, where all tokens are renumbered.
    """

    kept: KeptColumns
    merges: list[Merge]
    selections: list[Selection]
    valid: Tensor | None
    moves: list[Move] = field(default_factory=list)

    @property
    def changes_nothing(self) -> bool:
        """Whether all columns stay as they are."""
        return not self.merges and not self.kept.removed

    def columns(self) -> Deferred[Tensor | None]:
        """B×L, on the CPU, which columns stay; padding counts as staying. Asking for it waits for the device."""
        # The merged rows must not live as long as this does.
        keep, valid = self.kept.keep, self.valid
        return Deferred(lambda: keep.cpu().bool() if valid is None else keep.cpu().bool() | ~valid)

    def repeated(self, times: int) -> Choice:
        """The same choice for each of `times` beams."""
        if times == 1:
            return self
        merges = [replace(merge, row=merge.row * times + beam) for merge in self.merges for beam in range(times)]
        valid = None if self.valid is None else self.valid.repeat_interleave(times, dim=0)
        moves = [replace(move, row=move.row * times + beam) for move in self.moves for beam in range(times)]
        return replace(self, kept=self.kept.repeated(times), merges=merges, valid=valid, moves=moves)


def choose_columns(
    groups: Sequence[Sequence[PlacedImage]],
    chosen: Sequence[Selection],
    merges: list[Merge],
    shape: tuple[int, int],
    valid: Tensor | None,
    newlines: Newlines,
    moves_newlines: Callable[[ImageLayout], bool] = lambda layout: False,
) -> Choice:
    """Turn selections into columns.

    Args:
        groups: The images that share a budget, group by group.
        chosen: The selection from each group.
        merges: The merged rows.
        shape: B and L.
        valid: B×L, on the CPU, false for padding; None where there is none.
        newlines: Which newline tokens stay.
        moves_newlines: Whether the newlines of an image follow the kept tokens of their frame.
    """
    pairs = list(zip(groups, chosen, strict=True))
    parts = [split_selection(selection, [placed.image for placed in group]) for group, selection in pairs]
    known = torch.ones(shape, dtype=torch.bool) if valid is None else valid.clone()
    total = int(known.sum())
    if all(selection.indices.device.type == "cpu" for selection in chosen) or any(
        _depends_on_newlines(group, selection, newlines) or any(moves_newlines(placed.layout) for placed in group)
        for group, selection in pairs
    ):
        chosen = _read_indices(chosen)
        parts = [
            split_selection(selection, [placed.image for placed in group])
            for group, selection in zip(groups, chosen, strict=True)
        ]
        selections, moves = [], []
        for placed, part in zip(
            [placed for group in groups for placed in group], [part for split in parts for part in split], strict=True
        ):
            of_part = _newlines_of(part, newlines)
            slots = kept_slots(placed.layout, part.indices, of_part, part.newlines)
            known[placed.row, placed.columns] = slots
            is_whole = len(part) == part.total and part.merge is None
            if not is_whole and moves_newlines(placed.layout):
                moved = placed.layout.with_newlines_after_frames(slots.nonzero().flatten())
                moves.append(Move(placed.row, placed.columns[moved]))
            selections.append(part.changed(newlines=int(slots[placed.layout.newline_slots].sum())))
        return Choice(KeptColumns.of_known(known, total), merges, selections, valid, moves)
    selections = []
    for (group, selection), split in zip(pairs, parts, strict=True):
        stay_newlines = _newlines_of(selection, newlines) == "all"
        for placed, part in zip(group, split, strict=True):
            known[placed.row, placed.token_columns] = False
            newline_slots = placed.layout.newline_slots
            known[placed.row, placed.columns[newline_slots]] = stay_newlines
            selections.append(part.changed(newlines=len(newline_slots) if stay_newlines else 0))
    columns = [flat_columns(group, shape[1]) for group in groups]
    kept = KeptColumns.of_chosen(known, columns, [selection.indices for selection in chosen], total)
    return Choice(kept, merges, selections, valid)


def flat_columns(group: Sequence[PlacedImage], length: int) -> Tensor:
    """N, the column of each token of a group's images, as a position among the columns of all rows."""
    return torch.cat([placed.row * length + placed.token_columns for placed in group])


def flat_newline_columns(group: Sequence[PlacedImage], length: int) -> Tensor:
    """The column of each newline of a group's images, as a position among the columns of all rows."""
    return torch.cat([placed.row * length + placed.columns[placed.layout.newline_slots] for placed in group])


def _newlines_of(selection: Selection, newlines: Newlines) -> Newlines:
    """Which newlines stay: all of them, if all tokens do."""
    is_whole = len(selection.indices) == selection.total and selection.merge is None
    return "all" if is_whole else newlines


def _depends_on_newlines(group: Sequence[PlacedImage], selection: Selection, newlines: Newlines) -> bool:
    """Whether the newlines that stay, and so the number of columns, depend on which tokens do."""
    if not any(len(placed.layout.newline_slots) for placed in group):
        return False
    if _newlines_of(selection, newlines) in ("kept rows", "chosen"):
        return True
    # Of an image whose tokens all stay, the newlines stay as well.
    return newlines == "none" and len(group) > 1 and len(selection.indices) >= min(map(len, (p.image for p in group)))


def _read_indices(selections: Sequence[Selection]) -> list[Selection]:
    """Return the selections with their indices on the CPU; those on a device are read in one copy."""
    there = [selection.indices for selection in selections if selection.indices.device.type != "cpu"]
    if not there:
        return list(selections)
    together = (there[0] if len(there) == 1 else torch.cat(there)).cpu()
    parts = iter(together.split([len(indices) for indices in there]))
    return [each if each.indices.device.type == "cpu" else each.changed(indices=next(parts)) for each in selections]


def kept_slots(layout: ImageLayout, kept: Tensor, newlines: Newlines, chosen: int = 0) -> Tensor:
    """Mark the slots of an image that stay.

    Args:
        layout: The layout of the image.
        kept: The tokens that stay, on the CPU.
        newlines: Which newlines stay.
        chosen: How many newlines the method itself selected.

    Returns:
        `layout.length` booleans.
    """
    stay = torch.ones(layout.length, dtype=torch.bool)
    stay[layout.slots] = False
    stay[layout.slots[kept]] = True
    newline_slots = layout.newline_slots
    if newlines == "none":
        stay[newline_slots] = False
    elif newlines == "kept rows":
        stay[newline_slots] = torch.isin(newline_slots, layout.newlines[kept])
    elif newlines == "chosen":
        # All newlines are the same row, so the first ones can stand for any.
        stay[newline_slots[chosen:]] = False
    return stay
