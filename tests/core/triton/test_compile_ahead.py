"""Every kernel compiles for the GPUs of five generations, without a GPU, and fits into their registers."""

import json
import os
import subprocess
import sys

import pytest
from helpers import TESTS

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.mark.slow
def test_every_kernel_compiles_for_every_gpu_without_spilling_registers():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src")])}
    environment.pop("TRITON_INTERPRET")
    script = TESTS.parent / "benchmarks" / "gpu_kernels.py"
    output = subprocess.check_output([sys.executable, str(script), "--json"], env=environment, text=True)
    found = json.loads(output.splitlines()[-1])
    assert len(found) >= 5
    for name, targets in found.items():
        assert set(targets) == {"sm_80", "sm_86", "sm_90", "sm_100", "gfx942"}
        assert all(each["spills"] == 0 for each in targets.values()), (name, targets)
        assert all(each["registers"] > 0 for each in targets.values()), (name, targets)
