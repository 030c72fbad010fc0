"""From the logical sequence to the shorter one that the language model processes, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Compaction:
    """How the L logical columns of each row become P physical ones.

    Attributes:
        index: B×P, the logical column of each physical one. A row that keeps fewer than P is padded on the left.
        mask_index: B×P, the same columns in rising order, by which masks are cut. It differs from `index` only where
            tokens were moved.
        valid: B×P, false for padding; None where there is none.
        fill: B×L, the physical column that stands for each logical one: its own, or the last kept one before it.
        tail: How many columns at the end stayed in place in every row.
        removed: How many columns of all rows were dropped, padding aside; None where the host does not know.
    """

    index: Tensor
    mask_index: Tensor
    valid: Tensor | None
    fill: Tensor
    tail: int
    removed: int | None = None

    @classmethod
    def from_mask(cls, keep: Tensor, order: Tensor | None = None) -> Compaction:
        """Build the compaction that keeps some columns. This waits for the device of the mask.

        Args:
            keep: B×L, true for the columns that stay; at least one per row.
            order: B×L, at least 0. The columns that stay are sorted by these numbers. None: they keep their order.
        """
        plan = cls.from_counts(keep, keep.sum(1).tolist(), _count_at_end(keep.all(0)))
        if order is None:
            return plan
        index = order.masked_fill(~keep, -1).argsort(dim=1, stable=True)[:, -plan.length :]
        tail = min(plan.tail, _count_at_end((index == plan.index).all(0)))
        return replace(plan, index=index, fill=_fill(index, plan.valid, keep.shape[1]), tail=tail)

    @classmethod
    def from_counts(cls, keep: Tensor, counts: Sequence[int], tail: int, removed: int | None = None) -> Compaction:
        """Build the compaction that keeps some columns in their order. Nothing waits for the device of the mask.

        Args:
            keep: B×L, true (or 1, as uint8) for the columns that stay; at least one per row.
            counts: B, how many stay of each row.
            tail: How many columns at the end stay in every row.
            removed: As in the class.
        """
        width, valid = max(counts), left_padding(counts)
        padding: int | Tensor = 0
        if valid is not None:
            valid = valid.to(keep.device)
            padding = (width - torch.tensor(counts)[:, None]).to(keep.device)
        numbers = keep if keep.dtype == torch.uint8 else keep.to(torch.uint8)
        index = numbers.argsort(dim=1, stable=True)[:, -width:]
        # A column has before it as many physical ones as columns up to it stay; a first one that is dropped, none.
        fill = keep.cumsum(1).clamp_min_(1) + (padding - 1)
        return cls(index, index, valid, fill, tail, removed)

    @classmethod
    def identity(cls, rows: int, length: int, valid: Tensor | None, device: torch.device) -> Compaction:
        """Build the compaction that keeps all columns, padding included. valid: B×L, false for padding."""
        index = torch.arange(length, device=device).expand(rows, -1)
        return cls(index, index, valid, index, length)

    def to(self, device: torch.device) -> Compaction:
        """The same on another device."""
        if self.index.device == device:
            return self
        index = self.index.to(device)
        mask_index = index if self.mask_index is self.index else self.mask_index.to(device)
        valid = None if self.valid is None else self.valid.to(device)
        return Compaction(index, mask_index, valid, self.fill.to(device), self.tail, self.removed)

    def then(self, later: Compaction) -> Compaction:
        """Combine with a later compaction of the P columns."""
        index = self.index.gather(1, later.index)
        tail = min(self.tail, later.tail)
        if self.mask_index is self.index and later.mask_index is later.index:
            return Compaction(index, index, later.valid, later.fill.gather(1, self.fill), tail)
        mask_index = self.mask_index.gather(1, later.mask_index)
        return Compaction(index, mask_index, later.valid, _fill(index, later.valid, self.fill.shape[1]), tail)

    @property
    def length(self) -> int:
        """P."""
        return self.index.shape[1]

    @property
    def dropped(self) -> int:
        """L − P."""
        return self.fill.shape[1] - self.length

    def take_rows(self, states: Tensor) -> Tensor:
        """Keep the states of the physical columns: B×L×d → B×P×d."""
        return _take(states, self.index)

    def take_columns(self, values: Tensor) -> Tensor:
        """Keep the values of the physical columns: …×B×L → …×B×P."""
        index = self.index.to(values.device)
        return values.gather(-1, index.expand(*values.shape[:-2], -1, -1))

    def restore(self, states: Tensor) -> Tensor:
        """Restore the logical columns: B×P×d → B×L×d.

        A dropped column repeats the last kept one before it, so that logits keep their shape.
        """
        return _take(states, self.fill)

    def valid_with_past(self, past: Tensor | None, start: int) -> Tensor | None:
        """Mark the columns that are not padding, those before this call included.

        Args:
            past: B×start, the same for the columns before this call; None where none of them is padding.
            start: The number of columns before this call.

        Returns:
            B×(start + P); None where there is no padding.
        """
        if past is None and self.valid is None:
            return None
        now = self.valid if self.valid is not None else torch.ones_like(self.index, dtype=torch.bool)
        if not start:
            return now
        if past is None:
            past = now.new_ones(len(now), start)
        return torch.cat([past.to(now.device), now], dim=1)

    def cut_mask(self, mask: Tensor) -> Tensor:
        """Cut a 4-D mask, B×h×L×(at least L), to the columns that stay, B×h×P×P.

        Padding is hidden from every query but itself: a query that sees nothing would become NaN.
        """
        index = self.mask_index.to(mask.device)
        heads, stored = mask.shape[1], mask.shape[-1]
        mask = mask.gather(2, index[:, None, :, None].expand(-1, heads, -1, stored))
        mask = mask.gather(3, index[:, None, None, :].expand(-1, heads, self.length, -1))
        if self.valid is not None:
            valid = self.valid.to(mask.device)
            mask = mask.masked_fill(~valid[:, None, None, :], hidden_value(mask.dtype))
            itself = torch.eye(self.length, dtype=torch.bool, device=mask.device) & ~valid[:, None, :, None]
            mask = mask.masked_fill(itself, True if mask.dtype == torch.bool else 0.0)
        return mask


def left_padding(counts: Sequence[int]) -> Tensor | None:
    """B×P, on the CPU, false for the padding before rows of so many columns; None where all have as many."""
    width = max(counts)
    return torch.arange(width) >= width - torch.tensor(counts)[:, None] if min(counts) < width else None


def _fill(index: Tensor, valid: Tensor | None, length: int) -> Tensor:
    """B×length, the physical column of each logical one, of the last kept before it, or of the first that is kept."""
    number = torch.arange(index.shape[1], device=index.device).expand_as(index)
    if valid is not None:
        number = number.masked_fill(~valid, -1)
    place = torch.full((len(index), length), -1, device=index.device).scatter(1, index, number)
    kept, columns = place >= 0, torch.arange(length, device=index.device)
    first = columns.masked_fill(~kept, length).amin(1, keepdim=True)
    return place.gather(1, columns.masked_fill(~kept, -1).cummax(1).values.maximum(first))


def _count_at_end(values: Tensor) -> int:
    """How many entries at the end are true without a break."""
    return int(values.flip(0).cumprod(0).sum())


def _take(states: Tensor, index: Tensor) -> Tensor:
    """B×L×d, B×P → B×P×d."""
    index = index.to(states.device)
    if len(states) == 1:
        return states[:, index[0]]
    if states.device.type != "cpu":
        return states.gather(1, index[:, :, None].expand(-1, -1, states.shape[2]))
    # Indexing copies whole rows, which `gather` does number by number; a device does not mind.
    return states[torch.arange(len(index))[:, None], index]


def hidden_value(dtype: torch.dtype) -> bool | float:
    """The value that hides a key in a mask of this dtype."""
    return False if dtype == torch.bool else torch.finfo(dtype).min


def visible_entries(mask: Tensor) -> Tensor:
    """The entries of an attention mask that show a key: true in a bool mask, 0 in an additive one, 1 in a 2-D one."""
    if mask.dtype == torch.bool:
        return mask
    if mask.ndim == 2:
        return mask != 0
    return mask > torch.finfo(mask.dtype).min / 2


def limit_to_window(mask: Tensor, window: int) -> Tensor:
    """Hide all but the last `window` keys of each query in a 4-D mask with as many queries as keys."""
    queries, keys = mask.shape[-2:]
    far = torch.arange(keys, device=mask.device)[None, :] <= torch.arange(queries, device=mask.device)[:, None] - window
    return mask.masked_fill(far, hidden_value(mask.dtype))
