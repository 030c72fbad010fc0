"""Which solver runs where."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

BACKENDS = ("auto", "numba", "torch", "triton", "rows")
"""The solvers of facility location."""

MATRIX_BACKENDS = ("auto", "numba", "torch", "triton")
"""The solvers of the DPP and of max-min, which need the whole matrix."""


LARGEST_AT_ONCE = 2048
"""Blocks with more tokens than this are spread over many processors by Triton, with a launch per pick."""

DEVICE_BACKENDS = ("torch", "triton")
"""The solvers that work on all blocks at once and read nothing back."""


@cache
def has_triton() -> bool:
    """Return whether Triton is installed. It comes with builds of torch for CUDA and ROCm."""
    return find_spec("triton") is not None


FAST_FLOAT64 = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))
"""The compute capabilities of NVIDIA's GPUs for data centres. The others compute float64 at 1/32 or 1/64 of float32."""

FAST_FLOAT64_ROCM = ("gfx906", "gfx908", "gfx90a", "gfx94", "gfx950")
"""The architectures of AMD's GPUs for data centres."""


def has_fast_float64(device: torch.device) -> bool:
    """Return whether sums in float64 are about as fast as compensated sums in float32.

    Args:
        device: Any device. MPS and NPU have no float64; graphics cards compute it slowly.
    """
    if device.type == "cuda":
        return _has_fast_float64(torch.cuda.get_device_properties(device))
    return device.type == "cpu"


def _has_fast_float64(properties: Any) -> bool:
    if torch.version.hip:
        return str(properties.gcnArchName).startswith(FAST_FLOAT64_ROCM)
    return (properties.major, properties.minor) in FAST_FLOAT64


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
