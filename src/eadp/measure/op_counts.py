"""The cost of a computation on any machine: its multiply-adds, and the peak size of its tensors."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eadp.compat import FlopCounterMode, TorchDispatchMode, cpu_flash_attention, sdpa_flop_count, tree_iter


@dataclass(frozen=True)
class OperationCounts:
    """The cost of a computation.

    Attributes:
        multiply_adds: Multiply-adds of torch's operations, without compiled kernels such as the greedy selection.
        peak_bytes: Largest total size of tensors that the computation created and that were alive at the same time,
            without scratch memory inside kernels.
    """

    multiply_adds: int
    peak_bytes: int


def count_operations(run: Callable[[], object]) -> OperationCounts:
    """Run a computation and count its multiply-adds and its peak memory."""
    gc.collect()  # Otherwise reference cycles of an earlier run could be freed during this one.
    with LiveTensorBytes() as alive, FlopCounterMode(display=False, custom_mapping=_CPU_ATTENTION) as counter:
        run()
    return OperationCounts(counter.get_total_flops() // 2, alive.peak)


def _attention_flops(query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return sdpa_flop_count(query, key, value)


# torch counts fused attention on GPUs, but has no formula for its version on the CPU.
_CPU_ATTENTION = {cpu_flash_attention(): _attention_flops}


class LiveTensorBytes(TorchDispatchMode):
    """Tracks the storages that torch's operations create, until they are freed.

    Attributes:
        now: Bytes alive at present.
        peak: Largest value of `now` so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._tracked: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {id(each.untyped_storage()) for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)}
        result = func(*args, **(kwargs or {}))
        for each in tree_iter(result):
            if isinstance(each, Tensor):
                self._track(each.untyped_storage(), inputs)
        return result

    def _track(self, storage: torch.UntypedStorage, inputs: set[int]) -> None:
        """Track a storage unless it belongs to an input, such as a weight."""
        if id(storage) in self._tracked or id(storage) in inputs:
            return
        self._tracked.add(id(storage))
        self.now += (size := storage.nbytes())
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, id(storage), size)

    def _free(self, storage: int, size: int) -> None:
        self._tracked.discard(storage)
        self.now -= size
