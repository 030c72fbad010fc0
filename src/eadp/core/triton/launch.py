"""The one place where Triton kernels are launched, so that tests can count and redirect launches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Launch a Triton kernel on the current device.

    Args:
        kernel: A function decorated with `triton.jit`.
        grid: Number of programs along each axis.
        arguments: The kernel's arguments.
        options: Its compile-time arguments, and options such as `num_warps`.
    """
    run(kernel, grid, arguments, options)


def run(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Run the kernel. Tests replace this function."""
    kernel[grid](*arguments, **options)


def empty_picks(matrices: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return B×K zeros for the picks of B blocks (int64) and for their gains (float64), made by one launch."""
    both = torch.zeros(2, len(matrices), most, dtype=torch.long, device=matrices.device)
    return both[0], both[1].view(torch.float64)
