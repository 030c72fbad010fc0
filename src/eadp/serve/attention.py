"""Record the attention of the vision tower from the inputs of vLLM's attention functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from eadp.models.vision_call import TowerLayer
from eadp.runtime.probe import AttentionInputs
from eadp.runtime.vision import compute_tower_layer, join_calls
from eadp.serve.compat import tensor_model_parallel_all_gather
from eadp.serve.tower_spec import TowerSpec


@contextmanager
def record_attention(
    functions: Sequence[Any], layers: Sequence[int], tower: TowerSpec | None
) -> Iterator[list[TowerLayer]]:
    """Record the attention of some layers while the block runs.

    Args:
        functions: The attention function of each layer of the tower.
        layers: The layers to record.
        tower: The vision tower. May be None if `layers` is empty.

    Yields:
        A list that gets one entry per layer when the block ends. It stays empty if the inputs of a layer cannot be
        read, because FlashInfer packs them.
    """
    recorded: list[TowerLayer] = []
    calls: dict[int, list[TowerLayer]] = {layer: [] for layer in layers}
    with ExitStack() as hooks:
        for layer, layer_calls in calls.items():
            assert tower is not None  # Without a tower, no method that needs its layers is available.
            hook = partial(_record_call, tower, layer, layer_calls)
            hooks.callback(functions[layer].register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield recorded
    if all(calls.values()):
        recorded += [join_calls(calls[layer]) for layer in layers]


def _record_call(
    tower: TowerSpec, layer: int, calls: list[TowerLayer], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Append the attention of one call to `calls`. Queries and keys are B×L×(heads·c) or B×L×heads×c."""
    query, key = args[:2] if args else (kwargs["query"], kwargs["key"])
    inputs = AttentionInputs(_all_heads(query, function, tower), _all_heads(key, function, tower), function.scale)
    sequences, bounds = [inputs], kwargs.get("cu_seqlens")
    if bounds is not None:
        if int(bounds[-1]) != inputs.query.shape[2]:
            return
        sequences = inputs.split(bounds)
    calls += [compute_tower_layer(each, layer, tower.depth, tower.has_cls, needs_received=True) for each in sequences]


def _all_heads(rows: Tensor, function: Any, tower: TowerSpec) -> Tensor:
    """Return the rows as B×heads×L×c, gathered from all ranks if they divide the heads among themselves."""
    rows = rows.flatten(2) if rows.ndim == 4 else rows
    if function.num_heads < tower.heads:
        rows = tensor_model_parallel_all_gather(rows.contiguous())
    return rows.unflatten(-1, (tower.heads, -1)).transpose(1, 2)
