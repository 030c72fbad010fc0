"""The one place where Triton kernels are launched, so that tests can count and redirect launches."""

from __future__ import annotations

from typing import Any


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
