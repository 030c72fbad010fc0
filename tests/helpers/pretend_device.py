"""A pretend GPU: tensors that say "cuda:0", hold CPU data, and count launches, waits and copies by the line of code.

    with pretend_device() as counts:
        features = on_device(features)
        cover_blocks(features, …)
    counts.launches, counts.waits, counts.copies  # {"core/block_cover.py:42": 1, …}

A launch is an operator of ATen that computes (views and allocations do not), or a Triton kernel, which then runs in
Triton's interpreter. A wait is a read of a value by the host: `item`, `tolist`, `bool`, a copy to the CPU, and whatever
has a result whose size depends on the data (`nonzero`, a boolean mask as an index). Before the first launch there is
nothing to wait for, so such a read is counted apart. A copy goes from the host to the device and makes nobody wait.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import eadp

Module = TypeVar("Module", bound=nn.Module)

DEVICE = torch.device("cuda:0")
PACKAGE = str(Path(eadp.__file__).parent)

WITHOUT_LAUNCH = {
    *("view", "_unsafe_view", "reshape", "_reshape_alias", "expand", "permute", "transpose", "t", "slice", "select"),
    *("unsqueeze", "squeeze", "detach", "alias", "as_strided", "split", "split_with_sizes", "unbind", "lift_fresh"),
    *("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "diagonal", "unfold", "narrow"),
    *("sym_size", "sym_numel", "sym_stride", "sym_storage_offset", "is_same_size", "unflatten", "view_as_real"),
}
"""Operators that only describe memory in another way, or reserve it."""

WAITING = {
    *("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal"),
    *("is_nonzero", "bincount", "repeat_interleave"),
}
"""Operators whose result, or its size, the host needs."""


class Memory:
    """Bytes of the tensors that were made on the device and are alive.

    Attributes:
        live: Bytes now.
        peak: The most bytes at any time.
    """

    def __init__(self) -> None:
        self.live = self.peak = 0
        self._known: set[int] = set()

    def note(self, held: Tensor) -> None:
        """Count the memory of a result that is not a view of another tensor."""
        key, size = held.untyped_storage()._cdata, held.untyped_storage().nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(held, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.remove(key)
        self.live -= size


@dataclass
class Counts:
    """What happened on the device, by the line of eadp that caused it ("core/block_cover.py:42").

    Attributes:
        launches: Launches of kernels.
        waits: Reads of values while something is queued.
        reads: Reads before the first launch.
        copies: Copies from the host.
    """

    launches: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    reads: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    memory: Memory = field(default_factory=Memory)

    def describe(self) -> str:
        """Return all lines with their counts, for the message of a failed test."""
        kinds = {"launches": self.launches, "waits": self.waits, "reads": self.reads, "copies": self.copies}
        return "\n".join(f"{name} {kind.total()}: {dict(kind.most_common())}" for name, kind in kinds.items())


STOCK = "stock"
"""In place of a line, where eadp hands over to the model's own code."""

HANDING_OVER = {
    ("runtime/attachment.py", "run"),
    ("runtime/probe.py", "attend"),
    ("runtime/inside.py", "add_shortened"),
    ("runtime/vision_recorder.py", "encoding"),
}
"""The functions of eadp that call the model's own code and do nothing else on the device."""

_counts: Counts | None = None
_without_float64 = False


def _note(kind: str) -> None:
    if _counts is not None:
        if kind == "waits" and not _counts.launches:
            kind = "reads"
        getattr(_counts, kind)[_line()] += 1


def _line() -> str:
    """Return the innermost line of eadp on the stack that is not the function which launches kernels.

    It is `STOCK` if there is none, or if that line runs the model.
    """
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE) and not name.endswith("/triton/launch.py"):
            file = name[len(PACKAGE) + 1 :]
            return STOCK if (file, frame.f_code.co_name) in HANDING_OVER else f"{file}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return STOCK


class PretendTensor(Tensor):
    """A tensor that claims to be on the device; `held` is the same data on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> PretendTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"PretendTensor({self.held!r})"

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace what a build of PyTorch without CUDA refuses for a CUDA tensor; leave the rest to the dispatcher."""
        if function in _REPLACED:
            return _REPLACED[function](*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})


def _held(value: Any) -> Any:
    return value.held if isinstance(value, PretendTensor) else value


def _wrap(value: Any) -> Any:
    return PretendTensor(value) if isinstance(value, Tensor) and not isinstance(value, PretendTensor) else value


def _index(index: Any) -> Any:
    """Unwrap an index and count what it costs. Returns the index for the CPU tensor, and whether it is a gather."""
    parts = index if isinstance(index, tuple) else (index,)
    gathers = False
    for part in parts:
        if isinstance(part, (Tensor, list)):
            gathers = True
            if not isinstance(part, PretendTensor):
                _note("copies")
            elif part.dtype in (torch.bool, torch.uint8):
                _note("waits")
    unwrapped = tuple(_held(part) for part in parts)
    return (unwrapped if isinstance(index, tuple) else unwrapped[0]), gathers


def _getitem(tensor: Tensor, index: Any) -> Any:
    held_index, gathers = _index(index)
    if gathers:
        _note("launches")
    return PretendTensor(_held(tensor)[held_index])


def _setitem(tensor: Tensor, index: Any, value: Any) -> None:
    held_index, _ = _index(index)
    if isinstance(value, Tensor) and not isinstance(value, PretendTensor):
        _note("copies")
    _note("launches")
    _held(tensor)[held_index] = _held(value)


def _reads(name: str) -> Callable[..., Any]:
    def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        _note("waits")
        return getattr(_held(tensor), name)(*args, **kwargs)

    return read


def _new_tensor(tensor: Tensor, data: Any, **kwargs: Any) -> Tensor:
    _note("copies")
    return PretendTensor(_held(tensor).new_tensor(data, **{k: v for k, v in kwargs.items() if k != "device"}))


_REPLACED: dict[Any, Callable[..., Any]] = {
    Tensor.__getitem__: _getitem,
    Tensor.__setitem__: _setitem,
    Tensor.new_tensor: _new_tensor,
    Tensor.__invert__: torch.bitwise_not,
    Tensor.contiguous: torch.ops.aten.contiguous,
    Tensor.copy_: torch.ops.aten.copy_,
    Tensor.nonzero: torch.ops.aten.nonzero,
    torch.nonzero: torch.ops.aten.nonzero,
    **{
        getattr(Tensor, name): _reads(name)
        for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")
    },
}


def _run(function: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator on the CPU data and count it."""
    name = function._schema.name.split("::")[1]
    on_device = any(isinstance(leaf, PretendTensor) for leaf in tree_leaves((args, kwargs)))
    to_device = on_device
    held_kwargs = tree_map(_held, kwargs)
    if kwargs.get("device") is not None:
        to_device = torch.device(kwargs["device"]).type == DEVICE.type
        held_kwargs["device"] = torch.device("cpu")
    if name in ("_to_copy", "copy_"):
        source = args[1] if name == "copy_" else args[0]
        reaches_device = isinstance(args[0], PretendTensor) if name == "copy_" else to_device
        if isinstance(source, PretendTensor):
            _note("launches" if reaches_device else "waits")
        elif reaches_device:
            _note("copies")
    elif name in WAITING and on_device:
        _note("waits")
        if name != "_local_scalar_dense":
            _note("launches")
    elif name not in WITHOUT_LAUNCH and to_device:
        _note("launches")
    out = function(*tree_map(_held, args), **held_kwargs)
    if args and name.endswith("_") and isinstance(args[0], Tensor):
        return args[0]
    if "out" in kwargs:
        return kwargs["out"]
    results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
    if to_device and _without_float64 and any(each.dtype == torch.float64 for each in results):
        raise TypeError(f"the pretend device has no float64, but {name} was to compute in it at {_line()}")
    is_view = any(each.alias_info is not None for each in function._schema.returns)
    if to_device and _counts is not None and not is_view:
        for each in results:
            _counts.memory.note(each)
    return tree_map(_wrap, out) if to_device else out


class _Mode(TorchDispatchMode):
    """Sends factory functions for the device to `_run`, too."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})


def _run_kernel(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    _note("launches")
    kernel[grid](*(_held(each) for each in arguments), **options)


def _tensor_maker(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap `torch.tensor` or `torch.as_tensor`, which look for a real CUDA device."""

    def maker(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if device is None or torch.device(device).type != DEVICE.type:
            return make(data, *args, **kwargs, **({} if device is None else {"device": device}))
        if isinstance(data, PretendTensor):
            return data
        _note("copies")
        return PretendTensor(make(data, *args, **kwargs))

    return maker


def on_device(value: Any) -> Any:
    """Move every tensor of a nested structure to the pretend device, without counting."""
    return tree_map(_wrap, value)


def module_on_device(module: Module) -> Module:
    """Return a copy of a module with its parameters and buffers on the pretend device."""
    moved = copy.deepcopy(module)
    for part in moved.modules():
        for name, weight in part._parameters.items():
            part._parameters[name] = (
                None if weight is None else nn.Parameter(_wrap(weight.detach()), requires_grad=False)
            )
        for name, buffer in part._buffers.items():
            part._buffers[name] = _wrap(buffer)
    return moved


def read(value: Any) -> Any:
    """Return the data of every tensor of a nested structure on the CPU, without counting."""
    return tree_map(_held, value)


@contextmanager
def pretend_device(name: str = "cuda:0", *, without_float64: bool = False) -> Iterator[Counts]:
    """Make the pretend device available and count what happens on it.

    Args:
        name: What the device is called.
        without_float64: Raise TypeError for any result in float64, as Apple's GPUs do.
    """
    global _counts
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        patch.setattr(torch, "tensor", _tensor_maker(torch.tensor))
        patch.setattr(torch, "as_tensor", _tensor_maker(torch.as_tensor))
        if eadp.core.backends.has_triton():
            from eadp.core.triton import launch

            patch.setattr(launch, "run", _run_kernel)
            patch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=8, minor=0))
        patch.setattr(sys.modules[__name__], "DEVICE", torch.device(name))
        patch.setattr(sys.modules[__name__], "_without_float64", without_float64)
        _counts = Counts()
        try:
            with _Mode():
                yield _counts
        finally:
            _counts = None
