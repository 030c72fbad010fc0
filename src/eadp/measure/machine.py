"""A description of the machine, stored next to every measured figure."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import numba
import torch


def describe_machine() -> dict[str, Any]:
    """Return the processor, the number of cores and threads, the GPU, and the versions that affect speed."""
    import transformers

    cpu = platform.processor()
    if (info := Path("/proc/cpuinfo")).exists():
        cpu = next((line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line), cpu)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numba": numba.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
