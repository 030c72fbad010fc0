"""Which solver runs where."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

import torch

BACKENDS = ("auto", "numba", "torch", "triton", "rows")
"""The solvers of facility location."""

MATRIX_BACKENDS = ("auto", "numba", "torch", "triton")
"""The solvers of the DPP and of max-min, which need the whole matrix."""


DEVICE_BACKENDS = ("torch", "triton")
"""The solvers that work on all blocks at once and read nothing back."""


@cache
def has_triton() -> bool:
    """Return whether Triton is installed. It comes with builds of torch for CUDA and ROCm."""
    return find_spec("triton") is not None


def choose_backend(requested: str, device: torch.device) -> str:
    """Return the solver for matrices on a device.

    Args:
        requested: One of `BACKENDS`. `auto` is numba on the CPU, Triton on CUDA and ROCm, and torch elsewhere.
        device: Where the matrix is. PyTorch calls ROCm's devices "cuda", too.

    Returns:
        `numba`, `torch`, `triton` or `rows`.

    Raises:
        ValueError: If Triton was requested and cannot run on this device.
    """
    if requested == "auto":
        if device.type == "cpu":
            return "numba"
        return "triton" if device.type == "cuda" and has_triton() else "torch"
    if requested == "triton":
        if not has_triton():
            raise ValueError("backend 'triton' needs the package triton, which is not installed; use 'auto' or 'torch'")
        if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise ValueError(
                f"backend 'triton' needs tensors on a CUDA or ROCm device, but they are on {device}; use 'auto'"
            )
    return requested
