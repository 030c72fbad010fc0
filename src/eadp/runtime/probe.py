"""Attention rows of one module, with any attention implementation.

sdpa and flash attention never compute the attention matrix, and asking for it would change what runs. A probe only
reads the queries and keys that enter the attention function, which then runs as always: outputs stay the same bit for
bit. Of the matrix, only the rows that someone needs are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from eadp.runtime.compact import visible_entries
from eadp.runtime.hooks import Hooks

Report = Callable[["AttentionInputs"], None]

PROBE = "eadp_probe"
"""Set on the configuration of a probed attention module: its `AttentionProbe`."""

CHUNK = 256
"""How many rows of attention are held at once where all are summed, on the CPU."""

CHUNK_ENTRIES = 1 << 27
"""How many entries of the attention of all sequences are held at once on a device."""


@dataclass(frozen=True)
class AttentionInputs:
    """The inputs of one attention call. H query heads share h key heads.

    Attributes:
        query: B×H×Q×d, after RoPE.
        key: B×h×K×d, after RoPE. K > Q where earlier keys come from a cache.
        scaling: The factor of the logits.
        mask: The mask of the attention function: None, B×K, or B×1×Q×K, boolean or additive.
        causal: Whether the function applies a causal mask itself, where the mask is not 4-D.
        window: The sliding window that the function applies itself, where the mask is not 4-D.
        softcap: The soft cap of the logits.
    """

    query: Tensor
    key: Tensor
    scaling: float
    mask: Tensor | None = None
    causal: bool = False
    window: int | None = None
    softcap: float | None = None

    def rows(self, queries: Tensor | None = None) -> Tensor:
        """Compute rows of the attention matrix in float32.

        Args:
            queries: R or B×R, the queries. None: all of them.

        Returns:
            B×H×R×K, softmax over the keys.
        """
        batch, heads, total, width = self.query.shape
        selected = self.query
        if queries is not None:
            queries = queries.to(self.query.device).expand(batch, -1)
            selected = selected.gather(2, queries[:, None, :, None].expand(-1, heads, -1, width))
        grouped = selected.float().unflatten(1, (self.key.shape[1], -1))
        logits = (grouped @ self.key.float()[:, :, None].mT).flatten(1, 2) * self.scaling
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        if self.mask is None and not self.causal and self.window is None:
            return logits.softmax(-1)
        if queries is None:
            queries = torch.arange(total, device=logits.device).expand(batch, -1)
        hidden = torch.finfo(logits.dtype).min
        return logits.masked_fill(~self._is_visible(queries), hidden).softmax(-1)

    def received(self) -> Tensor:
        """B×K, the attention that each key receives: the mean over heads and queries."""
        (batch, heads, total), size = self.query.shape[:3], CHUNK
        if self.query.device.type != "cpu":
            size = max(1, CHUNK_ENTRIES // (batch * heads * self.key.shape[2]))
        if total <= size:
            return self.rows().sum(2).mean(1) / total
        chunks = torch.arange(total, device=self.query.device).split(size)
        sums = torch.stack([self.rows(chunk).sum(2) for chunk in chunks]).sum(0)
        return sums.mean(1) / total

    def as_one_head(self) -> AttentionInputs:
        """The same call with all heads concatenated to one. It needs as many key heads as query heads."""
        query, key = (each.transpose(1, 2).flatten(2)[:, None] for each in (self.query, self.key))
        return replace(self, query=query, key=key, scaling=query.shape[-1] ** -0.5)

    def first_keys(self, count: int) -> AttentionInputs:
        """The same call with its first keys only."""
        mask = None if self.mask is None else self.mask[..., :count]
        return replace(self, key=self.key[:, :, :count], mask=mask)

    def for_row(self, row: int) -> AttentionInputs:
        """The inputs of one row of the batch."""
        mask = self.mask if self.mask is None or len(self.mask) == 1 else self.mask[row : row + 1]
        return replace(self, query=self.query[row : row + 1], key=self.key[row : row + 1], mask=mask)

    def split(self, bounds: Tensor) -> list[AttentionInputs]:
        """Split a packed call over several sequences. bounds: where each of them begins, and where the last ends."""
        lengths = bounds.diff().tolist()
        parts = zip(self.query.split(lengths, 2), self.key.split(lengths, 2), strict=True)
        return [replace(self, query=query, key=key) for query, key in parts]

    def _is_visible(self, queries: Tensor) -> Tensor:
        """B×1×R×K, true where a query sees a key. queries: B×R."""
        keys = self.key.shape[2]
        if self.mask is not None and self.mask.ndim == 4:
            mask = visible_entries(self.mask[..., :keys]).to(queries.device)
            mask = mask.expand(len(queries), -1, -1, -1)
            return mask.gather(2, queries[:, None, :, None].expand(-1, mask.shape[1], -1, keys))
        columns = torch.arange(keys, device=queries.device)
        places = (queries + keys - self.query.shape[2])[:, None, :, None]
        visible = torch.ones(*queries.shape, keys, dtype=torch.bool, device=queries.device)[:, None]
        if self.causal:
            visible = visible & (columns <= places)
        if self.window is not None:
            visible = visible & (columns > places - self.window)
        if self.mask is not None:
            visible = visible & visible_entries(self.mask[:, None, None, :keys]).to(queries.device)
        return visible


def can_join(calls: Sequence[AttentionInputs]) -> bool:
    """Whether several calls, such as those of a packed sequence, have one sequence each, all of one length."""
    shapes = {(call.query.shape, call.key.shape) for call in calls}
    return len(calls) > 1 and len(shapes) == 1 and len(calls[0].key) == 1 and all(call.mask is None for call in calls)


def join_inputs(calls: Sequence[AttentionInputs]) -> AttentionInputs:
    """Join calls of one sequence each to a batch of sequences."""
    query, key = (torch.cat([getattr(call, name) for call in calls]) for name in ("query", "key"))
    return replace(calls[0], query=query, key=key)


class AttentionProbe:
    """Reports the inputs of the calls of one attention module, while its hooks are in place.

    Attention modules look up their attention function by a name in their configuration. A probed module has a copy of
    its configuration with another name, under which it finds a function that reports the inputs and then calls the
    original one. Nothing changes from call to call, so threads may call the module at the same time; what a call
    reports to is found when it happens. A packed call (Qwen's towers under flash attention) is reported sequence by
    sequence, as the other implementations call it.
    """

    def __init__(self, attention: nn.Module, find_report: Callable[[int], Report | None]) -> None:
        """Set up the probe.

        Args:
            attention: The attention module.
            find_report: Called at each call, with its number of queries. Returns what the inputs are reported to, or
                None.
        """
        self.attention = attention
        self.find_report = find_report

    def install(self, hooks: Hooks) -> None:
        """Hook into the module."""
        self.config: Any = self.attention.config
        # The new name contains the original one: modules test whether it contains "flash".
        self.name = f"eadp_{id(self)}_{attention_implementation(self.config)}"
        hooks.register(self.attention, attention_registry(self.attention), self.name, _attend)
        probed = config_with_attention(self.config, self.name)
        # The registry is global: it must not refer to the model, which could never be freed then.
        setattr(probed, PROBE, self)
        hooks.override(self.attention, "config", probed)

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **settings: Any) -> Any:
        """Report the inputs of a call, and make it."""
        report = self.find_report(query.shape[2])
        if report is not None:
            for inputs in _read_inputs(module, query, key, mask, settings):
                report(inputs)
        # Flash attention reads the name again.
        called = _WithConfig(module, self.config) if "flash" in self.name else module
        return attention_function(module, self.config)(called, query, key, value, mask, **settings)

    def __deepcopy__(self, memo: dict[int, Any]) -> AttentionProbe:
        return self


def _attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **settings: Any) -> Any:
    return getattr(module.config, PROBE).attend(module, query, key, value, attention_mask, **settings)


class _WithConfig:
    """A module with another configuration."""

    def __init__(self, module: nn.Module, config: Any) -> None:
        self.module = module
        self.config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


class ReachedAttention(Exception):
    """Ends the forward of a layer at its attention, whose inputs it carries."""

    def __init__(self, inputs: AttentionInputs) -> None:
        super().__init__()
        self.inputs = inputs


def stop_at_attention(inputs: AttentionInputs) -> None:
    """Report the inputs by ending the forward."""
    raise ReachedAttention(inputs)


def peek_attention(layer: nn.Module, states: Tensor, settings: dict[str, Any]) -> AttentionInputs:
    """Read the attention inputs of a decoder layer without running it any further, and without writing its cache.

    Args:
        layer: The decoder layer. The probe of its attention must report to `stop_at_attention`.
        states: B×P×d, its input.
        settings: The other arguments of its forward.
    """
    cache = settings.get("past_key_values")
    try:
        layer.forward(states, **{**settings, "past_key_values": None if cache is None else _ReadOnlyCache(cache)})
    except ReachedAttention as reached:
        return reached.inputs
    raise RuntimeError("the layer did not call its attention through its module, so its inputs are not known")


class _ReadOnlyCache:
    """Answers like a cache to which the new keys were added, without adding them."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        held = cached_keys_and_values(self._cache, layer_idx)
        if held is None:
            return keys, values
        return torch.cat([held[0], keys], dim=2), torch.cat([held[1], values], dim=2)


@contextmanager
def record_attention_inputs(attention: nn.Module) -> Iterator[list[AttentionInputs]]:
    """Record the inputs of every call of an attention module within the block."""
    calls: list[AttentionInputs] = []
    with Hooks() as hooks:
        AttentionProbe(attention, lambda queries: calls.append).install(hooks)
        yield calls


def _read_inputs(module: Any, query: Tensor, key: Tensor, mask: Any, settings: dict[str, Any]) -> list[AttentionInputs]:
    if mask is not None and not isinstance(mask, Tensor):
        raise ValueError(f"masks of flex attention cannot be read, got {type(mask).__name__}; use sdpa, flash or eager")
    scaling, causal = settings.get("scaling"), settings.get("is_causal")
    inputs = AttentionInputs(
        query.detach(),
        key.detach(),
        query.shape[-1] ** -0.5 if scaling is None else scaling,
        mask,
        bool(getattr(module, "is_causal", False) if causal is None else causal),
        settings.get("sliding_window"),
        settings.get("softcap"),
    )
    bounds = settings.get("cu_seq_lens_q")
    return [inputs] if bounds is None else inputs.split(bounds)
