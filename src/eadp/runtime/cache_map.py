"""Which columns of the logical sequence a KV cache holds.

Outside the language model every length is logical: as if nothing had been pruned. Inside it is physical. A cache is
between the two, so it answers `get_seq_length` with the logical length, by which `generate` slices its inputs, and
`get_query_offset` with the physical one, from which masks are built.
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
class CacheMap:
    """The difference between the logical and the physical contents of one KV cache.

    Attributes:
        offset: The logical length minus the physical one.
        prefilled: How many physical columns the pruned prefills wrote. Later ones match logical columns one to one.
        uncroppable: How many of them cannot be cropped away, because some token before their end was pruned.
        valid: B×prefilled, false for padding; None where there is none.
        padded: Whether a pruned prefill had padding, kept or not.
        shift: B, how far positions are behind the logical ones because they were renumbered; None where they were not.
        owner: The model whose hooks translate masks for this cache.
        deeper: Pairs of a layer and the map from this layer on, where deeper layers hold fewer tokens. In those maps,
            `shift` says how far positions are behind those of the first layer.
    """

    offset: int = 0
    prefilled: int = 0
    uncroppable: int = 0
    valid: Tensor | None = None
    padded: bool = False
    shift: Tensor | None = None
    owner: weakref.ref[nn.Module] | None = None
    deeper: tuple[tuple[int, CacheMap], ...] = ()

    def at_layer(self, layer: int) -> CacheMap:
        """The map of one layer of the cache."""
        return next((cache_map for first, cache_map in reversed(self.deeper) if first <= layer), self)

    def change_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Apply a change of the cache's rows to the rows of the map."""
        self.valid = None if self.valid is None else change(self.valid)
        self.shift = None if self.shift is None else change(self.shift)
        for _, cache_map in self.deeper:
            cache_map.change_rows(change)

    def crop(self, length: int) -> None:
        """Forget the physical columns from `length` on.

        Raises:
            ValueError: If tokens were pruned after that length.
        """
        if length < self.uncroppable:
            raise ValueError(
                f"the cache cannot be cropped to fewer than {self.uncroppable + self.offset} tokens: "
                "some before that were pruned"
            )
        self.prefilled = min(self.prefilled, length)
        self.valid = None if self.valid is None else self.valid[:, : self.prefilled]

    def physical_mask(self, mask: Tensor | None, rows: int, length: int, device: torch.device) -> Tensor | None:
        """Build the 2-D mask over `length` physical columns.

        Args:
            mask: B×logical; None for no padding.
            rows: B.
            length: The number of physical columns.
            device: The device of the mask.
        """
        if mask is None and self.valid is None:
            return None
        valid = self.valid
        if valid is None:
            valid = torch.ones(rows, self.prefilled, dtype=torch.bool, device=device)
        if mask is None:
            later = valid.new_ones(rows, length - self.prefilled)
        else:
            later = (mask[:, self.prefilled + self.offset :] != 0).to(valid.device)
        return torch.cat([valid, later], dim=1)


class _MappedCache:
    """Mixed into the class of a cache that holds a pruned sequence."""

    cache_map: CacheMap

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return _original(self).get_seq_length(layer_idx) + self.cache_map.at_layer(layer_idx).offset

    def get_query_offset(self, layer_idx: int = 0) -> int:
        owner = self.cache_map.owner and self.cache_map.owner()
        if owner is not None and MARK not in vars(owner):
            raise RuntimeError("this cache was filled while the model was pruned; attach again to continue from it")
        return _original(self).get_seq_length(layer_idx)

    def reset(self) -> None:
        _original(self).reset()
        self.cache_map = CacheMap(owner=self.cache_map.owner)

    def crop(self, tokens_to_remove: int) -> None:
        for first, cache_map in ((0, self.cache_map), *self.cache_map.deeper):
            cache_map.crop(int(_original(self).get_seq_length(first)) + min(tokens_to_remove, 0))
        _original(self).crop(tokens_to_remove)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        _original(self).reorder_cache(beam_idx)
        self.cache_map.change_rows(lambda rows: rows.index_select(0, beam_idx.to(rows.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        _original(self).batch_repeat_interleave(repeats)
        self.cache_map.change_rows(lambda rows: rows.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        _original(self).batch_select_indices(indices)
        self.cache_map.change_rows(lambda rows: rows[indices.to(rows.device)])


def _original(cache: Any) -> Any:
    """The methods of the cache's original class."""
    return super(_MappedCache, cache)


@memoize
def _mapped_class(original: Any) -> Any:
    return type(f"Mapped{original.__name__}", (_MappedCache, original), {})


def cache_map_of(cache: Cache | None) -> CacheMap | None:
    """The map of a cache; None where it holds no pruned sequence."""
    return getattr(cache, "cache_map", None)


def set_cache_map(cache: Any, cache_map: CacheMap) -> None:
    """Give a cache its map, in place of an earlier one."""
    if not isinstance(cache, _MappedCache):
        original: Any = type(cache)
        cache.__class__ = _mapped_class(original)
    cache.cache_map = cache_map
