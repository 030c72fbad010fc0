"""Data-parallel training in processes with one thread per process.

On small matrices, two processes are faster than one process with two threads.
"""

from __future__ import annotations

import signal
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
    """Call work(*arguments) in every worker.

    Raises:
        ValueError: If there is no worker.
    """
    if size < 1:
        raise ValueError(f"training needs at least one worker, got {size}")
    if size == 1:
        torch.set_num_threads(1)
        return work(*arguments)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_join, (size, port, work, arguments), nprocs=size)


def _join(own_rank: int, size: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    # torch interrupts workers whose parent died, but what a shell runs in the background ignores interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=own_rank, world_size=size)
    try:
        work(*arguments)
    finally:
        dist.destroy_process_group()


def rank() -> int:
    """Return the number of this worker, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    """Return the number of workers."""
    return dist.get_world_size() if dist.is_initialized() else 1


def first_worker_first(work: Callable[[], Any]) -> Any:
    """Call `work` in the first worker while the others wait, then in the others, which find its files on disk."""
    if size() == 1:
        return work()
    result = work() if rank() == 0 else None
    barrier()
    return work() if rank() else result


def write_concatenated(file: Path, part: NDArray[Any]) -> None:
    """Write one array to disk: the parts of all workers, which have the same shape, in the order of their ranks."""
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
    """Wait until all workers have arrived."""
    if size() > 1:
        dist.barrier()


def average_gradients(parameters: list[nn.Parameter]) -> None:
    """Replace the gradients of every worker by their mean over all workers."""
    if size() == 1:
        return
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    parts = (flat / size()).split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)
