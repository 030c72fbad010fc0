"""A call that continues from a cache which was cut between the layers of the language model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from eadp.compat import max_length, query_offset
from eadp.runtime.cache_map import CacheMap
from eadp.runtime.decoder import Decoder
from eadp.runtime.masks import Mask, attention_type, causal_layer_mask
from eadp.runtime.positions import move_back


class ContinuationPass:
    """A call that adds tokens to a cache whose layers hold different numbers of tokens."""

    def __init__(self, decoder: Decoder, mask: Mask, cache_map: CacheMap, position_ids: Tensor | None) -> None:
        """Begin a continuation.

        Args:
            decoder: The language model.
            mask: The mask over the whole logical sequence.
            cache_map: The map of the cache.
            position_ids: …×B×P, the positions from which the first layer's rotary embeddings are computed. None: those
                of deeper layers are the same.
        """
        self.decoder = decoder
        self.config = decoder.config
        self.mask = mask
        self.cache_map = cache_map
        self.position_ids = position_ids
        self._memo: dict[Any, Any] = {}

    def enter_layer(
        self, index: int, layer: nn.Module, states: Tensor, settings: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Give a layer the mask and the positions for what its part of the cache holds."""
        cache_map = self.cache_map.at_layer(index)
        if cache_map is self.cache_map:
            return states, settings
        key = attention_type(self.config, index), id(cache_map)
        if key not in self._memo:
            cache = settings["past_key_values"]
            valid = self._valid(index, cache_map, states, cache)
            self._memo[key] = {"attention_mask": causal_layer_mask(states, valid, self.config, cache, index)}
            if self.position_ids is not None and cache_map.shift is not None:
                ids = move_back(self.position_ids, cache_map.shift)
                self._memo[key]["position_embeddings"] = self.decoder.rotary_embeddings(states, ids, index)
        return states, {**settings, **self._memo[key]}

    def _valid(self, index: int, cache_map: CacheMap, states: Tensor, cache: Any) -> Tensor | None:
        rows, length = states.shape[:2]
        held = query_offset(cache, index)
        # A static layer counts in a tensor, which must not be waited for; the causal mask hides its empty slots.
        width = max_length(cache, index) if isinstance(held, Tensor) else held + length
        flat_mask = self.mask if isinstance(self.mask, Tensor) and self.mask.ndim == 2 else None
        if flat_mask is not None and cache_map.extends_in_one_launch(flat_mask, states.device):
            return cache_map.extend_in_one_launch(flat_mask, torch.bool)[0]
        return cache_map.physical_mask(flat_mask, rows, width, states.device)
