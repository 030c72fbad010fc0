"""Run by `make test-vllm`, in the environment of hosts/vllm.txt."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SHIM = ROOT / "hosts" / "shim"
# Before vLLM is imported, and for its processes too.
os.environ.update(
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS="1",
    PYTHONPATH=os.pathsep.join([str(ROOT / "src"), str(SHIM)]),
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_LOGGING_LEVEL="WARNING",
    VLLM_NO_USAGE_STATS="1",
)
sys.path[:0] = [str(HERE), str(HERE.parent), str(SHIM)]
import sitecustomize  # noqa: E402, F401 - the shim, also where Python was started without it
import torch  # noqa: E402

torch.set_num_threads(1)
