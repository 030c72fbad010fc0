"""Which columns of the logical sequence a KV cache holds.

Outside the language model every length is logical: as if nothing had been pruned. Inside it is physical. A cache is
between the two, so it answers `get_seq_length` with the logical length, by which `generate` slices its inputs, and
`get_query_offset` with the physical one, from which masks are built.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import Tensor
from transformers import Cache

from eadp.core.backends import choose_backend
from eadp.runtime.attachment import Attachment

PRUNED_CACHE = "pruned_cache"
"""Set on a cache that holds a pruned sequence: its `PrunedCache`."""


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
        attachment: That of the model whose hooks translate masks for this cache.
        deeper: Pairs of a layer and the map from this layer on, where deeper layers hold fewer tokens. In those maps,
            `shift` says how far positions are behind those of the first layer.
    """

    offset: int = 0
    prefilled: int = 0
    uncroppable: int = 0
    valid: Tensor | None = None
    padded: bool = False
    shift: Tensor | None = None
    attachment: Attachment | None = None
    deeper: tuple[tuple[int, CacheMap], ...] = ()
    _cast: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False)
    """`valid`, and the same in the type of the masks: cast once, not at every step."""

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
        """Build the 2-D mask over `length` physical columns: 0 or false for padding.

        Args:
            mask: B×logical; None for no padding.
            rows: B.
            length: The number of physical columns.
            device: The device of the mask.
        """
        valid = self.valid
        if mask is None:
            if valid is None:
                return None
            return torch.cat([valid, valid.new_ones(rows, length - self.prefilled)], dim=1)
        if valid is None and not self.padded:
            # All pruned columns were tokens, and so were all that stayed: any of them can stand for those.
            return mask[:, self.offset :].to(device)
        if self.extends_in_one_launch(mask, device):
            return self.extend_in_one_launch(mask, mask.dtype)[0]
        if valid is None:
            valid = self.valid = torch.ones(rows, self.prefilled, dtype=torch.bool, device=device)
        if self._cast is None or self._cast[0] is not valid or self._cast[1].dtype != mask.dtype:
            self._cast = valid, valid.to(mask.dtype)
        return torch.cat([self._cast[1], mask[:, self.prefilled + self.offset :].to(valid.device)], dim=1)

    def extends_in_one_launch(self, mask: Any, device: torch.device) -> TypeGuard[Tensor]:
        """Whether `extend_in_one_launch` applies: padded prompts with a 2-D mask on CUDA or ROCm."""
        return (
            (self.padded or self.valid is not None)
            and isinstance(mask, Tensor)
            and mask.ndim == 2
            and mask.device == device
            and all(each is None or each.device == device for each in (self.valid, self.shift))
            and not torch.compiler.is_compiling()
            and choose_backend("auto", device) == "triton"
        )

    def extend_in_one_launch(
        self, mask: Tensor, dtype: torch.dtype, ids: Tensor | None = None, start: int = 0, tokens: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        """Build the 2-D mask over all physical columns, and the positions of new tokens if they were renumbered.

        Args:
            mask: B×logical.
            dtype: Type of the mask that is built.
            ids: …×B×tokens, the logical positions; None where they are counted from `start`.
            start: The logical length before this call.
            tokens: The number of new tokens; 0 if no positions are wanted.

        Returns:
            B×physical, the mask, and …×B×tokens, the positions; None where they are the logical ones.
        """
        from eadp.core.triton.continuation import extend

        shift = self.shift if tokens else None
        return extend(self.valid, mask, self.prefilled, self.offset, dtype, shift, ids, start, tokens)


class PrunedCache:
    """The methods that a cache gets in place of its own while it holds a pruned sequence.

    They are attributes of that one cache: its class stays, and a copied or pickled cache has them too. The cache may
    not be part of a reference cycle, which would keep its memory until the next garbage collection, so its own methods
    are called on a shallow copy, which shares its layers.

    Attributes:
        physical: The shallow copy.
        cache_map: The map of the cache.
        logical_mask: The mask over the whole logical sequence, from the base model's call to the language model's.
        continuation: The present call (a `ContinuationPass`), if layers of the cache hold different numbers of tokens.
    """

    OVERRIDDEN = (
        "get_seq_length",
        "get_query_offset",
        "reset",
        "crop",
        "reorder_cache",
        "batch_repeat_interleave",
        "batch_select_indices",
    )

    def __init__(self, physical: Any, cache_map: CacheMap) -> None:
        self.physical = physical
        self.cache_map = cache_map
        self.logical_mask: Any = None
        self.continuation: Any = None

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The logical length."""
        return self.physical.get_seq_length(layer_idx) + self.cache_map.at_layer(layer_idx).offset

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """The physical length."""
        attachment = self.cache_map.attachment
        if attachment is not None and not attachment.is_active:
            raise RuntimeError("this cache was filled while the model was pruned; attach again to continue from it")
        return self.physical.get_seq_length(layer_idx)

    def reset(self) -> None:
        """Empty the cache."""
        self.physical.reset()
        self.cache_map = CacheMap(attachment=self.cache_map.attachment)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove tokens at the end; their number is negative."""
        for first, cache_map in ((0, self.cache_map), *self.cache_map.deeper):
            cache_map.crop(int(self.physical.get_seq_length(first)) + min(tokens_to_remove, 0))
        self.physical.crop(tokens_to_remove)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Give each beam the row that it continues."""
        self.physical.reorder_cache(beam_idx)
        self.cache_map.change_rows(lambda rows: rows.index_select(0, beam_idx.to(rows.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        self.physical.batch_repeat_interleave(repeats)
        self.cache_map.change_rows(lambda rows: rows.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some of the rows."""
        self.physical.batch_select_indices(indices)
        self.cache_map.change_rows(lambda rows: rows[indices.to(rows.device)])


def pruned_cache_of(cache: Cache | None) -> PrunedCache | None:
    """The methods of a cache that holds a pruned sequence; None where it holds none."""
    return getattr(cache, PRUNED_CACHE, None)


def cache_map_of(cache: Cache | None) -> CacheMap | None:
    """The map of a cache; None where it holds no pruned sequence."""
    pruned = pruned_cache_of(cache)
    return None if pruned is None else pruned.cache_map


def set_cache_map(cache: Any, cache_map: CacheMap) -> None:
    """Give a cache its map, in place of an earlier one."""
    pruned = pruned_cache_of(cache)
    if pruned is not None:
        pruned.cache_map = cache_map
        return
    pruned = PrunedCache(copy.copy(cache), cache_map)
    setattr(cache, PRUNED_CACHE, pruned)
    for name in PrunedCache.OVERRIDDEN:
        setattr(cache, name, getattr(pruned, name))
