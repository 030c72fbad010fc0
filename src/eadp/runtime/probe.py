"""Attention rows of one module, whatever attention implementation runs it.

sdpa and flash attention never form the attention matrix, and asking for it would change what runs. A probe only looks
at the queries and keys on their way into the stock attention function, which then does its work as always: outputs stay
the same bit for bit. Of the matrix just the rows that someone wants are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from eadp.compat import (
    attention_function,
    attention_implementation,
    attention_registry,
    cached_keys_and_values,
    config_with_attention,
)
from eadp.runtime.compact import visible
from eadp.runtime.hooks import Hooks

CHUNK = 256
"""Rows of attention that are held at once where all are summed."""


@dataclass(frozen=True)
class Heads:
    """What one attention call goes by. H query heads share h key heads.

    query: B×H×Q×d, key: B×h×K×d, both after RoPE. Q < K where earlier keys come from a cache.
    mask:  as the attention function gets it: None, B×K, or B×1×Q×K, of bools or additive.
    causal, window, softcap: what the function adds to the mask by itself, where the mask is not 4-D.
    """

    query: Tensor
    key: Tensor
    scaling: float
    mask: Tensor | None = None
    causal: bool = False
    window: int | None = None
    softcap: float | None = None

    def rows(self, queries: Tensor) -> Tensor:
        """B×H×R×K, softmax over the keys for some of the queries, in float32. queries: R, or B×R."""
        batch, heads, _, width = self.query.shape
        queries = queries.to(self.query.device).expand(batch, -1)
        asked = self.query.gather(2, queries[:, None, :, None].expand(-1, heads, -1, width)).float()
        grouped = asked.unflatten(1, (self.key.shape[1], -1))
        logits = (grouped @ self.key.float()[:, :, None].mT).flatten(1, 2) * self.scaling
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        hidden = torch.finfo(logits.dtype).min
        return logits.masked_fill(~self._sees(queries), hidden).softmax(-1)

    def received(self) -> Tensor:
        """B×K, the attention that each key gets: the mean over heads and queries."""
        total = self.query.shape[2]
        chunks = torch.arange(total, device=self.query.device).split(CHUNK)
        sums = torch.stack([self.rows(chunk).sum(2) for chunk in chunks]).sum(0)
        return sums.mean(1) / total

    def full_width(self) -> Heads:
        """The same with all heads side by side as one. As many key heads as query heads."""
        query, key = (each.transpose(1, 2).flatten(2)[:, None] for each in (self.query, self.key))
        return replace(self, query=query, key=key, scaling=query.shape[-1] ** -0.5)

    def _sees(self, queries: Tensor) -> Tensor:
        """B×1×R×K, true where a query sees a key. queries: B×R."""
        keys = self.key.shape[2]
        if self.mask is not None and self.mask.ndim == 4:
            mask = visible(self.mask[..., :keys]).to(queries.device)
            mask = mask.expand(len(queries), -1, -1, -1)
            return mask.gather(2, queries[:, None, :, None].expand(-1, mask.shape[1], -1, keys))
        columns = torch.arange(keys, device=queries.device)
        places = (queries + keys - self.query.shape[2])[:, None, :, None]
        sees = torch.ones(*queries.shape, keys, dtype=torch.bool, device=queries.device)[:, None]
        if self.causal:
            sees = sees & (columns <= places)
        if self.window is not None:
            sees = sees & (columns > places - self.window)
        if self.mask is not None:
            sees = sees & visible(self.mask[:, None, None, :keys]).to(queries.device)
        return sees

    def of(self, row: int) -> Heads:
        """Those of one row of the batch."""
        mask = self.mask if self.mask is None or len(self.mask) == 1 else self.mask[row : row + 1]
        return replace(self, query=self.query[row : row + 1], key=self.key[row : row + 1], mask=mask)

    def segments(self, bounds: Tensor) -> list[Heads]:
        """One call over several sequences side by side, cut into one for each. bounds: where they begin and end."""
        lengths = bounds.diff().tolist()
        parts = zip(self.query.split(lengths, 2), self.key.split(lengths, 2), strict=True)
        return [replace(self, query=query, key=key) for query, key in parts]


class AttentionProbe:
    """Shows `see` the heads of every call of one attention module, while its hooks are in place.

    Attention modules look up their attention function by a name in their configuration. For the time of a call the
    module gets a copy of its configuration with a name of ours, under which a function is found that shows the heads
    and hands over to the stock one. Between calls nothing is changed. A packed call (Qwen's towers under flash
    attention) is shown sequence by sequence, as the other implementations call it.
    """

    def __init__(
        self, attention: nn.Module, see: Callable[[Heads], None], when: Callable[[], bool] = lambda: True
    ) -> None:
        self.attention = attention
        self.see = see
        self.when = when
        self._leave_again: Callable[[], None] | None = None

    def install(self, hooks: Hooks) -> None:
        hooks.before(self.attention, self._enter)
        hooks.after(self.attention, self._leave)

    def _enter(self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.when():
            return
        config: Any = attention.config
        registry, stock = attention_registry(attention), attention_function(attention)
        # The stock name stays in it: modules ask whether it has "flash" in it.
        name = f"eadp_{id(self)}_{attention_implementation(config)}"
        probed = config_with_attention(config, name)

        def attend(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **settings: Any
        ) -> Any:
            for heads in _heads(module, query, key, attention_mask, settings):
                self.see(heads)
            # Flash attention reads the name again.
            attention.config = config
            try:
                return stock(module, query, key, value, attention_mask, **settings)
            finally:
                attention.config = probed

        def leave() -> None:
            attention.config = config
            del registry[name]

        registry[name] = attend
        attention.config = probed
        self._leave_again = leave

    def _leave(self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self._leave_again is not None:
            self._leave_again()
            self._leave_again = None


def ahead(layer: nn.Module, states: Tensor, settings: dict[str, Any]) -> Heads:
    """The heads by which a decoder layer would attend: it is run up to there and no further, and its cache stays."""
    seen: list[Heads] = []

    def stop(heads: Heads) -> None:
        seen.append(heads)
        raise _Seen

    hooks = Hooks()
    AttentionProbe(layer.get_submodule("self_attn"), stop).install(hooks)
    cache = settings.get("past_key_values")
    try:
        layer.forward(states, **{**settings, "past_key_values": None if cache is None else _Unwritten(cache)})
    except _Seen:
        pass
    finally:
        hooks.undo()
    return seen[0]


class _Seen(Exception):
    """The layer came to its attention."""


class _Unwritten:
    """Answers like a cache to which the new keys were added, without adding them."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        held = cached_keys_and_values(self._cache, layer_idx)
        if held is None:
            return keys, values
        return torch.cat([held[0], keys], dim=2), torch.cat([held[1], values], dim=2)


@contextmanager
def watching(attention: nn.Module) -> Iterator[list[Heads]]:
    """The heads of every call of an attention module within the block."""
    hooks, calls = Hooks(), list[Heads]()
    AttentionProbe(attention, calls.append).install(hooks)
    try:
        yield calls
    finally:
        hooks.undo()


def _heads(module: Any, query: Tensor, key: Tensor, mask: Any, settings: dict[str, Any]) -> list[Heads]:
    if mask is not None and not isinstance(mask, Tensor):
        raise ValueError(f"masks of flex attention cannot be read, got {type(mask).__name__}; use sdpa, flash or eager")
    scaling, causal = settings.get("scaling"), settings.get("is_causal")
    heads = Heads(
        query.detach(),
        key.detach(),
        query.shape[-1] ** -0.5 if scaling is None else scaling,
        mask,
        bool(getattr(module, "is_causal", False) if causal is None else causal),
        settings.get("sliding_window"),
        settings.get("softcap"),
    )
    bounds = settings.get("cu_seq_lens_q")
    return [heads] if bounds is None else heads.segments(bounds)
