"""What a cache remembers of the tokens that it never got.

Outside the language model every length is logical: as if nothing had been pruned. Inside it is physical. A cache stands
between the two, so it answers `get_seq_length` with the logical length (`generate` slices its inputs by it) and
`get_query_offset` with the physical one (masks are built from it).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as memoize
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from eadp.runtime.hooks import MARK


@dataclass
class Ledger:
    """The difference between the logical and the physical contents of one cache.

    offset:  logical minus physical length.
    settled: how many physical columns the pruned prefills wrote; later ones match logical columns one to one.
    firm:    how many of them cannot be cropped away: behind them no token was pruned.
    valid:   B×settled, false for padding; None where there is none.
    padded:  whether a pruned prefill had padding, kept or not.
    shift:   B, how far positions lag behind the logical ones because they were renumbered; None where they were not.
    owner:   the model whose hooks translate masks for this cache.
    deeper:  the layers from which on the cache holds still fewer tokens, with what is to be remembered there. There
             `shift` says how far positions lag behind those of the first layer.
    """

    offset: int = 0
    settled: int = 0
    firm: int = 0
    valid: Tensor | None = None
    padded: bool = False
    shift: Tensor | None = None
    owner: weakref.ref[nn.Module] | None = None
    deeper: tuple[tuple[int, Ledger], ...] = ()

    def at(self, layer: int) -> Ledger:
        """What is to be remembered of one layer of the cache."""
        return next((ledger for first, ledger in reversed(self.deeper) if first <= layer), self)

    def rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Do to the rows what is done to the cache's."""
        self.valid = None if self.valid is None else change(self.valid)
        self.shift = None if self.shift is None else change(self.shift)
        for _, ledger in self.deeper:
            ledger.rows(change)

    def crop(self, length: int) -> None:
        """Forget the columns from `length` on."""
        if length < self.firm:
            raise ValueError(
                f"the cache can be cropped to {self.firm + self.offset} tokens at most: before that some were pruned"
            )
        self.settled = min(self.settled, length)
        self.valid = None if self.valid is None else self.valid[:, : self.settled]

    def physical(self, mask: Tensor | None, rows: int, length: int, device: torch.device) -> Tensor | None:
        """The 2-D mask over `length` physical columns. mask: B×logical, or None for no padding."""
        if mask is None and self.valid is None:
            return None
        valid = self.valid
        if valid is None:
            valid = torch.ones(rows, self.settled, dtype=torch.bool, device=device)
        if mask is None:
            later = valid.new_ones(rows, length - self.settled)
        else:
            later = (mask[:, self.settled + self.offset :] != 0).to(valid.device)
        return torch.cat([valid, later], dim=1)


class _Ledgered:
    """Mixed into the class of a cache that holds a pruned sequence."""

    ledger: Ledger

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return _stock(self).get_seq_length(layer_idx) + self.ledger.at(layer_idx).offset

    def get_query_offset(self, layer_idx: int = 0) -> int:
        owner = self.ledger.owner and self.ledger.owner()
        if owner is not None and MARK not in vars(owner):
            raise RuntimeError("this cache was filled while the model was pruned; attach again to go on from it")
        return _stock(self).get_seq_length(layer_idx)

    def reset(self) -> None:
        _stock(self).reset()
        self.ledger = Ledger(owner=self.ledger.owner)

    def crop(self, tokens_to_remove: int) -> None:
        for first, ledger in ((0, self.ledger), *self.ledger.deeper):
            ledger.crop(int(_stock(self).get_seq_length(first)) + min(tokens_to_remove, 0))
        _stock(self).crop(tokens_to_remove)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        _stock(self).reorder_cache(beam_idx)
        self.ledger.rows(lambda rows: rows.index_select(0, beam_idx.to(rows.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        _stock(self).batch_repeat_interleave(repeats)
        self.ledger.rows(lambda rows: rows.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        _stock(self).batch_select_indices(indices)
        self.ledger.rows(lambda rows: rows[indices.to(rows.device)])


def _stock(cache: Any) -> Any:
    return super(_Ledgered, cache)


@memoize
def _ledgered(stock: Any) -> Any:
    return type(f"Ledgered{stock.__name__}", (_Ledgered, stock), {})


def ledger_of(cache: Cache | None) -> Ledger | None:
    return getattr(cache, "ledger", None)


def keep_ledger(cache: Any, ledger: Ledger) -> None:
    """Give a cache its ledger, in place of the one that it may have."""
    if not isinstance(cache, _Ledgered):
        stock: Any = type(cache)
        cache.__class__ = _ledgered(stock)
    cache.ledger = ledger
