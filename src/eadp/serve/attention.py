"""What the vision tower attends to, seen on its way into vLLM's attention functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor
from vllm.distributed import tensor_model_parallel_all_gather

from eadp.models.vision_call import TowerLayer
from eadp.runtime.probe import AttentionInputs
from eadp.runtime.vision import compute_tower_layer, join_calls
from eadp.serve.tower import Tower


@contextmanager
def watching(functions: Sequence[Any], layers: Sequence[int], tower: Tower | None) -> Iterator[list[TowerLayer]]:
    """functions: of the tower's layers, one by one. layers: those that are wanted. The list is filled when the block
    ends; it stays empty where the layers' calls cannot be read (FlashInfer's packing)."""
    found: list[TowerLayer] = []
    calls: dict[int, list[TowerLayer]] = {layer: [] for layer in layers}
    with ExitStack() as hooks:
        for layer, seen in calls.items():
            assert tower is not None  # or no layers are asked for
            see = partial(_see, tower, layer, seen)
            hooks.callback(functions[layer].register_forward_pre_hook(see, with_kwargs=True).remove)
        yield found
    if all(calls.values()):
        found += [join_calls(calls[layer]) for layer in layers]


def _see(
    tower: Tower, layer: int, seen: list[TowerLayer], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Before an attention function runs on queries, keys and values: B×L×(heads·c), or B×L×heads×c."""
    query, key = args[:2] if args else (kwargs["query"], kwargs["key"])
    inputs = AttentionInputs(_all_heads(query, function, tower), _all_heads(key, function, tower), function.scale)
    parts, bounds = [inputs], kwargs.get("cu_seqlens")
    if bounds is not None:
        if int(bounds[-1]) != inputs.query.shape[2]:
            return
        parts = inputs.split(bounds)
    seen += [compute_tower_layer(part, layer, tower.depth, tower.has_cls, needs_received=True) for part in parts]


def _all_heads(rows: Tensor, function: Any, tower: Tower) -> Tensor:
    """B×heads×L×c, also where ranks share the heads."""
    rows = rows.flatten(2) if rows.ndim == 4 else rows
    if function.num_heads < tower.heads:
        rows = tensor_model_parallel_all_gather(rows.contiguous())
    return rows.unflatten(-1, (tower.heads, -1)).transpose(1, 2)
