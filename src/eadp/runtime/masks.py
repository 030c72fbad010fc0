"""Attention masks: from the logical sequence to the physical one.

A mask has one of four forms. None: no padding. 2-D: B×(past + L). 4-D: prepared by the model, because a static cache
needs it or because the family attends in both directions within an image. A dict: one of those per type of attention
layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache

from eadp.compat import (
    attention_implementation,
    create_layer_mask,
    mask_width,
    max_length,
    query_offset,
    sliding_layers,
)
from eadp.runtime.cache_map import CacheMap
from eadp.runtime.compact import Compaction, hidden_value, limit_to_window, visible_entries

Mask = Tensor | dict[str, Tensor | None] | None

FULL, SLIDING = "full_attention", "sliding_attention"


def full_attention_mask(mask: Mask) -> Tensor | None:
    """The mask of the layers that attend to the whole sequence."""
    if isinstance(mask, dict):
        if FULL not in mask:
            raise ValueError("prepared masks for sliding windows alone do not show the padding; pass a 2-D mask")
        mask = mask[FULL]
    if mask is not None and not isinstance(mask, Tensor):
        raise ValueError(f"masks of flex attention cannot be shortened, got {type(mask).__name__}; use sdpa or eager")
    return mask


def check_width(mask: Mask, length: int) -> None:
    """Raise ValueError if a mask that was prepared for a static cache does not show a whole prompt of this length."""
    mask = full_attention_mask(mask)
    if mask is not None and mask.ndim == 4 and mask.shape[-1] < length:
        raise ValueError(
            f"the static cache has room for {mask.shape[-1]} tokens, fewer than the prompt has before it is pruned, so "
            "its mask does not show the whole prompt; use pruned.static_cache(max_new_tokens=…)"
        )


def valid_columns(mask: Mask, length: int) -> Tensor | None:
    """B×length, which tokens of this call are not padding; None where none is padding."""
    check_width(mask, length)
    mask = full_attention_mask(mask)
    if mask is None:
        return None
    visible = visible_entries(mask)
    # The last query of a 4-D mask sees every token before it that is not padding.
    return visible[:, 0, -1, :length] if mask.ndim == 4 else visible[:, -length:]


def valid_past_columns(mask: Mask, past: CacheMap, start: int, rows: int, device: torch.device) -> Tensor | None:
    """B×start, which physical columns before this call are not padding; None where none is padding."""
    if not start:
        return None
    mask = full_attention_mask(mask)
    if mask is not None and mask.ndim == 4:
        raise ValueError("a static cache that is not empty takes no new image; use a dynamic cache")
    return past.physical_mask(None if mask is None else mask[:, : start + past.offset], rows, start, device)


def prefill_mask(mask: Mask, valid: Tensor | None, plan: Compaction, cache: Cache | None, window: int | None) -> Mask:
    """Build the mask of a prefill that was shortened to P tokens.

    Args:
        mask: The mask of the prefill before.
        valid: B×(start + P), which physical columns are not padding.
        plan: Which columns stay.
        cache: The KV cache.
        window: The sliding window of the language model, if it has one.
    """
    full = full_attention_mask(mask)
    first = {sliding: layer for layer, sliding in reversed(list(enumerate(sliding_layers(cache))))}
    _check_room(cache, first.get(False), plan.length)
    if full is None or full.ndim == 2:
        return valid
    cut = plan.cut_mask(full)
    if not isinstance(mask, dict):
        return _widen(cut, cache, first.get(False))
    shortened: dict[str, Tensor | None] = {}
    for layer_type in mask:
        sliding = layer_type == SLIDING
        if sliding and window is None:
            raise ValueError("the mask is for sliding layers, but the language model's configuration has no window")
        part = limit_to_window(cut, window) if sliding and window is not None else cut
        shortened[layer_type] = _widen(part, cache, first.get(sliding))
    return shortened


def _check_room(cache: Cache | None, layer: int | None, length: int) -> None:
    """Raise ValueError if a layer of a static cache is too small for a prefill of `length` tokens."""
    if cache is None or layer is None:
        return
    room = mask_width(cache, length, layer)
    if room < length:
        raise ValueError(
            f"the static cache has room for {room} tokens, but the pruned prompt has {length}; make it larger, or use "
            "pruned.static_cache(max_new_tokens=…)"
        )


def _widen(mask: Tensor, cache: Cache | None, layer: int | None) -> Tensor:
    """Add hidden columns for the keys that this layer of the cache returns: a static one returns all its slots."""
    if cache is None or layer is None:
        return mask
    length = mask.shape[-1]
    return F.pad(mask, (0, mask_width(cache, length, layer) - length), value=hidden_value(mask.dtype))


def attention_type(config: Any, layer: int) -> str:
    """Whether a layer of the language model attends to the whole sequence or to a sliding window."""
    layer_types = getattr(config, "layer_types", None)
    return layer_types[layer] if layer_types else FULL


def cut_layer_mask(mask: Tensor, plan: Compaction, config: Any, cache: Cache | None, layer: int) -> Tensor:
    """The mask of one layer for the P tokens that are left of a prefill. mask: 4-D, for the whole sequence."""
    cut = plan.cut_mask(mask)
    if attention_type(config, layer) == SLIDING:
        cut = limit_to_window(cut, config.sliding_window)
    return _widen(cut, cache, layer)


def causal_layer_mask(states: Tensor, valid: Tensor | None, config: Any, cache: Cache | None, layer: int) -> Any:
    """The mask that transformers builds for one layer, given what this layer of the cache holds.

    Args:
        states: B×P×d, the states at the input of the layer.
        valid: B×(held + P), false for padding.
        config: The configuration of the language model.
        cache: The KV cache.
        layer: The layer.
    """
    is_sliding = attention_type(config, layer) == SLIDING
    # A static cache counts in a tensor; its empty slots have to be hidden.
    held = None if cache is None else query_offset(cache, layer)
    sees_all = states.shape[1] == 1 and not is_sliding and attention_implementation(config) == "sdpa"
    if sees_all and valid is not None and isinstance(held, int) and valid.shape[1] == held + 1:
        # transformers would first wait to learn if any token is padding.
        return valid.bool()[:, None, None, :]
    return create_layer_mask(config, states, valid, cache, layer, sliding=is_sliding)


def continuation_mask(
    mask: Mask, cache_map: CacheMap, cache: Any, rows: int, length: int, device: torch.device
) -> Mask:
    """The mask of a call that adds `length` tokens to a pruned cache."""
    if isinstance(mask, dict) or (mask is not None and mask.ndim == 4):
        if rows > 1 and length > 1:
            raise ValueError(
                "several prompts at once cannot continue from a pruned static cache; use a dynamic cache, or one prompt"
            )
        # It was built from the physical length, but with the padding at logical columns.
        return cache_map.physical_mask(None, rows, max_length(cache), device) if cache_map.padded else mask
    return cache_map.physical_mask(mask, rows, query_offset(cache) + length, device)


def with_physical_mask(kwargs: dict[str, Any], cache_map: CacheMap, tokens: Tensor) -> dict[str, Any]:
    """The arguments of a call that adds tokens, B×L or B×L×d, to a pruned cache."""
    rows, length = tokens.shape[:2]
    mask = continuation_mask(
        kwargs.get("attention_mask"), cache_map, kwargs["past_key_values"], rows, length, tokens.device
    )
    return {**kwargs, "attention_mask": mask}
