"""Small tables of numbers that kernels read: where blocks lie, how many tokens they have."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=1024)
def numbers_on_device(
    values: tuple[int, ...] | tuple[float, ...], device: torch.device, dtype: torch.dtype = torch.int32
) -> Tensor:
    """Return numbers as a tensor on a device. Nobody may change it: the same numbers give the same tensor.

    What was copied once is not copied again, so a selection of the same shapes can be captured in a CUDA graph, in
    which nothing may be copied from the host. (Within a capture, the first copy raises.)

    Args:
        values: The numbers.
        device: The device.
        dtype: The type of the tensor.
    """
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)
