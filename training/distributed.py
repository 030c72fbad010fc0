"""Workers that train together, one thread each: on small matrices two of them are faster than one with two threads."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn


def run(size: int, work: Callable[..., None], *arguments: Any) -> None:
    """work(*arguments) in every worker."""
    if size < 1:
        raise ValueError(f"training takes at least one worker, got {size}")
    if size == 1:
        torch.set_num_threads(1)
        return work(*arguments)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_join, (size, port, work, arguments), nprocs=size)


def _join(own_rank: int, size: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=own_rank, world_size=size)
    try:
        work(*arguments)
    finally:
        dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def first_alone(work: Callable[[], Any]) -> Any:
    """The first worker does it, the others wait and then find it done."""
    if size() == 1:
        return work()
    result = work() if rank() == 0 else None
    barrier()
    return work() if rank() else result


def write_together(file: Path, part: NDArray[Any]) -> None:
    """One array on disk, the workers' parts (all alike in shape) one after another."""
    scratch = file.with_suffix(".part.npy")
    shape = (size() * len(part), *part.shape[1:])
    if rank() == 0:
        np.lib.format.open_memmap(scratch, "w+", part.dtype, shape)
    barrier()
    mapped = np.load(scratch, mmap_mode="r+")
    mapped[rank() * len(part) : (rank() + 1) * len(part)] = part
    mapped.flush()
    barrier()
    if rank() == 0:
        scratch.replace(file)
    barrier()


def barrier() -> None:
    if size() > 1:
        dist.barrier()


def average_gradients(parameters: list[nn.Parameter]) -> None:
    """Every worker goes on with the mean of all gradients."""
    if size() == 1:
        return
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    together = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(together)
    parts = (together / size()).split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)
