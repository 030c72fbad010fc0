"""From the logical sequence to the shorter one that the language model sees, and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Compaction:
    """L logical columns become P physical ones, row by row.

    index: B×P, the logical column of each physical one. A row that keeps fewer than P is padded on the left.
    seats: B×P, the same columns in rising order, by which masks are cut: `index`, unless tokens changed their places.
    valid: B×P, false for that padding; None where there is none.
    fill:  B×L, the physical column that stands for each logical one: its own, or the last kept one before it.
    tail:  how many columns at the end stayed in every row, where they were.
    """

    index: Tensor
    seats: Tensor
    valid: Tensor | None
    fill: Tensor
    tail: int

    @classmethod
    def of(cls, keep: Tensor, places: Tensor | None = None) -> Compaction:
        """keep: B×L, true for the columns that stay; at least one a row.

        places: B×L, at least 0; the columns that stay are put in the order of these numbers. None: as they were.
        """
        counts = keep.sum(1, keepdim=True)
        width = int(counts.max())
        padding = width - counts
        ragged = bool((padding > 0).any())
        valid = torch.arange(width, device=keep.device) >= padding if ragged else None
        index = seats = keep.to(torch.uint8).argsort(dim=1, stable=True)[:, -width:]
        tail = _run(keep.all(0))
        if places is not None:
            index = places.masked_fill(~keep, -1).argsort(dim=1, stable=True)[:, -width:]
            tail = min(tail, _run((index == seats).all(0)))
        return cls(index, seats, valid, _fill(index, valid, keep.shape[1]), tail)

    @classmethod
    def identity(cls, rows: int, length: int, valid: Tensor | None, device: torch.device) -> Compaction:
        """All columns stay where they are, padding among them. valid: B×L, false for it."""
        index = torch.arange(length, device=device).expand(rows, -1)
        return cls(index, index, valid, index, length)

    def then(self, later: Compaction) -> Compaction:
        """Both at once, where `later` shortens the P columns once more."""
        index, seats = self.index.gather(1, later.index), self.seats.gather(1, later.seats)
        fill = _fill(index, later.valid, self.fill.shape[1])
        return Compaction(index, seats, later.valid, fill, min(self.tail, later.tail))

    @property
    def length(self) -> int:
        return self.index.shape[1]

    @property
    def dropped(self) -> int:
        return self.fill.shape[1] - self.length

    def rows(self, states: Tensor) -> Tensor:
        """B×L×d → B×P×d."""
        return _picked(states, self.index)

    def columns(self, values: Tensor) -> Tensor:
        """…×B×L → …×B×P."""
        index = self.index.to(values.device)
        return values.gather(-1, index.expand(*values.shape[:-2], -1, -1))

    def restore(self, states: Tensor) -> Tensor:
        """B×P×d → B×L×d: a dropped row repeats the last kept one before it, so logits keep their shape."""
        return _picked(states, self.fill)

    def after(self, settled: Tensor | None, start: int) -> Tensor | None:
        """B×(start + P), which columns are no padding where `settled`, B×start, came before; None where all are."""
        if settled is None and self.valid is None:
            return None
        now = self.valid if self.valid is not None else torch.ones_like(self.index, dtype=torch.bool)
        if settled is None:
            settled = now.new_ones(len(now), start)
        return torch.cat([settled.to(now.device), now], dim=1)

    def square(self, mask: Tensor) -> Tensor:
        """A 4-D mask B×h×L×(≥L) for the columns that stay, B×h×P×P.

        Padding is hidden from every query, but sees itself: a row that sees nothing would turn into NaN.
        """
        index = self.seats.to(mask.device)
        heads, stored = mask.shape[1], mask.shape[-1]
        mask = mask.gather(2, index[:, None, :, None].expand(-1, heads, -1, stored))
        mask = mask.gather(3, index[:, None, None, :].expand(-1, heads, self.length, -1))
        if self.valid is not None:
            valid = self.valid.to(mask.device)
            mask = mask.masked_fill(~valid[:, None, None, :], hidden(mask.dtype))
            itself = torch.eye(self.length, dtype=torch.bool, device=mask.device) & ~valid[:, None, :, None]
            mask = mask.masked_fill(itself, True if mask.dtype == torch.bool else 0.0)
        return mask


def _fill(index: Tensor, valid: Tensor | None, length: int) -> Tensor:
    """B×length, the physical column of each logical one, of the last kept before it, or of the first that is kept."""
    number = torch.arange(index.shape[1], device=index.device).expand_as(index)
    if valid is not None:
        number = number.masked_fill(~valid, -1)
    place = torch.full((len(index), length), -1, device=index.device).scatter(1, index, number)
    kept, columns = place >= 0, torch.arange(length, device=index.device)
    first = columns.masked_fill(~kept, length).amin(1, keepdim=True)
    return place.gather(1, columns.masked_fill(~kept, -1).cummax(1).values.maximum(first))


def _run(true: Tensor) -> int:
    """How many entries at the end are true without a break."""
    return int(true.flip(0).cumprod(0).sum())


def _picked(states: Tensor, index: Tensor) -> Tensor:
    """B×L×d, B×P → B×P×d. Copies whole rows, which `gather` does number by number."""
    index = index.to(states.device)
    return states[torch.arange(len(index), device=index.device)[:, None], index]


def hidden(dtype: torch.dtype) -> bool | float:
    """What hides a key in a mask of this type."""
    return False if dtype == torch.bool else torch.finfo(dtype).min


def visible(mask: Tensor) -> Tensor:
    """Which entries of an attention mask let through: true in a bool mask, 0 in an additive one, 1 in a 2-D one."""
    if mask.dtype == torch.bool:
        return mask
    if mask.ndim == 2:
        return mask != 0
    return mask > torch.finfo(mask.dtype).min / 2


def within(mask: Tensor, window: int) -> Tensor:
    """A 4-D mask of equally many queries and keys, cut to a sliding window of the last `window` keys."""
    queries, keys = mask.shape[-2:]
    far = torch.arange(keys, device=mask.device)[None, :] <= torch.arange(queries, device=mask.device)[:, None] - window
    return mask.masked_fill(far, hidden(mask.dtype))
