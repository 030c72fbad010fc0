"""Attention masks: from the logical sequence to the physical one.

A mask comes in one of four shapes. None: no padding. 2-D, B×(past + L). 4-D, built beforehand because a static cache
wants it or because the family attends in both directions within an image. A dict of those by kind of attention layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache

from eadp.compat import create_layer_mask, mask_width, max_length, query_offset, sliding_layers
from eadp.runtime.compact import Compaction, hidden, visible, within
from eadp.runtime.ledger import Ledger

Mask = Tensor | dict[str, Tensor | None] | None

FULL, SLIDING = "full_attention", "sliding_attention"


def flat(mask: Mask) -> Tensor | None:
    """The mask of the layers that see everything."""
    if isinstance(mask, dict):
        if FULL not in mask:
            raise ValueError(
                "masks built beforehand for sliding windows alone do not tell the padding; pass a 2-D mask"
            )
        mask = mask[FULL]
    if mask is not None and not isinstance(mask, Tensor):
        raise ValueError(f"masks of flex attention cannot be shortened, got {type(mask).__name__}; use sdpa or eager")
    return mask


def segment(mask: Mask, length: int) -> Tensor | None:
    """B×length: which of the tokens of this call are no padding; None where none is.

    The last query of a 4-D mask sees every token before it that is no padding.
    """
    mask = flat(mask)
    if mask is None:
        return None
    valid = visible(mask)
    return valid[:, 0, -1, :length] if mask.ndim == 4 else valid[:, -length:]


def settled(mask: Mask, past: Ledger, start: int, rows: int, device: torch.device) -> Tensor | None:
    """B×start: which physical columns before this call are no padding; None where none is."""
    if not start:
        return None
    mask = flat(mask)
    if mask is not None and mask.ndim == 4:
        raise ValueError("a static cache that already holds something takes no new image; use a dynamic one")
    return past.physical(None if mask is None else mask[:, : start + past.offset], rows, start, device)


def prefilled(mask: Mask, valid: Tensor | None, plan: Compaction, cache: Cache | None, window: int | None) -> Mask:
    """The mask of a prefill shortened to P tokens. valid: B×(start + P), which physical columns are no padding."""
    full = flat(mask)
    if full is None or full.ndim == 2:
        return valid
    square = plan.square(full)
    first = {sliding: layer for layer, sliding in reversed(list(enumerate(sliding_layers(cache))))}
    if not isinstance(mask, dict):
        return _widened(square, cache, first.get(False))
    shortened: dict[str, Tensor | None] = {}
    for kind in mask:
        sliding = kind == SLIDING
        if sliding and window is None:
            raise ValueError("the mask is for sliding layers, but the language model's configuration has no window")
        part = within(square, window) if sliding and window is not None else square
        shortened[kind] = _widened(part, cache, first.get(sliding))
    return shortened


def _widened(mask: Tensor, cache: Cache | None, layer: int | None) -> Tensor:
    """As many columns as this layer of the cache will answer with: static ones answer with all their slots."""
    if cache is None or layer is None:
        return mask
    length = mask.shape[-1]
    return F.pad(mask, (0, mask_width(cache, length, layer) - length), value=hidden(mask.dtype))


def kind_of(config: Any, layer: int) -> str:
    """What a layer of the language model sees: everything, or the last few tokens."""
    kinds = getattr(config, "layer_types", None)
    return kinds[layer] if kinds else FULL


def gathered(mask: Tensor, plan: Compaction, config: Any, cache: Cache | None, layer: int) -> Tensor:
    """The mask of one layer for the P tokens that are left of a prefill. mask: 4-D, of layers that see everything."""
    square = plan.square(mask)
    if kind_of(config, layer) == SLIDING:
        square = within(square, config.sliding_window)
    return _widened(square, cache, layer)


def causal(states: Tensor, valid: Tensor | None, config: Any, cache: Cache | None, layer: int) -> Any:
    """The stock mask of one layer, by what this layer of the cache holds. valid: B×(held + P), false for padding."""
    return create_layer_mask(config, states, valid, cache, layer, sliding=kind_of(config, layer) == SLIDING)


def continued(mask: Mask, ledger: Ledger, cache: Any, rows: int, length: int, device: torch.device) -> Mask:
    """The mask of a call that adds `length` tokens to a pruned cache."""
    if isinstance(mask, dict) or (mask is not None and mask.ndim == 4):
        if rows > 1 and length > 1:
            raise ValueError(
                "several prompts at once cannot go on from a pruned static cache; use a dynamic cache, or one prompt"
            )
        # It was built from the physical length, but with the padding at logical columns.
        return ledger.physical(None, rows, max_length(cache), device) if ledger.padded else mask
    return ledger.physical(mask, rows, query_offset(cache) + length, device)
