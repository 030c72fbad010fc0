"""What a computation takes whatever the machine: multiply-adds, and bytes of tensors alive at once."""

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
    """multiply_adds: of torch's operations; what compiled kernels add (the greedy choice) is not among them.
    peak_bytes: of the tensors alive at once that the computation made; scratch inside a kernel is not among them.
    """

    multiply_adds: int
    peak_bytes: int


def count_operations(run: Callable[[], object]) -> OperationCounts:
    """Run, and count."""
    gc.collect()  # What an earlier run left in cycles would be freed in the midst of this one, or not.
    with LiveTensorBytes() as alive, FlopCounterMode(display=False, custom_mapping=_FUSED_ON_CPU) as counter:
        run()
    return OperationCounts(counter.get_total_flops() // 2, alive.peak)


def _attention(query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return sdpa_flop_count(query, key, value)


# torch counts this attention on GPUs, and has no formula for the same on the CPU.
_FUSED_ON_CPU = {cpu_flash_attention(): _attention}


class LiveTensorBytes(TorchDispatchMode):
    """Follows the storages that operations make until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(each.untyped_storage()) for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)}
        result = func(*args, **(kwargs or {}))
        for each in tree_iter(result):
            if isinstance(each, Tensor):
                self._follow(each.untyped_storage(), given)
        return result

    def _follow(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        """given: storages that were there before, the weights among them."""
        if id(storage) in self._known or id(storage) in given:
            return
        self._known.add(id(storage))
        self.now += (size := storage.nbytes())
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, id(storage), size)

    def _free(self, storage: int, size: int) -> None:
        self._known.discard(storage)
        self.now -= size
