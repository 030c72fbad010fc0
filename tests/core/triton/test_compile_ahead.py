"""Every kernel compiles for the GPUs of five generations, without a GPU, and fits into their registers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import TESTS

import eadp

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.mark.slow
def test_every_kernel_compiles_for_every_gpu_without_spilling_registers():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src")])}
    environment.pop("TRITON_INTERPRET")
    script = TESTS.parent / "benchmarks" / "gpu_kernels.py"
    output = subprocess.check_output([sys.executable, str(script), "--json"], env=environment, text=True)
    found = json.loads(output.splitlines()[-1])
    for name, targets in found.items():
        assert set(targets) == {"sm_80", "sm_86", "sm_90", "sm_100", "gfx942"}
        # Blocks of more than 2,048 tokens have kernels of their own, which may spill.
        assert "large block" in name or all(each["spills"] == 0 for each in targets.values()), (name, targets)
        assert all(each["registers"] > 0 for each in targets.values()), (name, targets)


def test_no_kernel_is_left_out():
    """What is launched anywhere is in the table that is compiled."""
    folder = Path(eadp.__file__).parent / "core" / "triton"
    launched = {
        name for source in folder.glob("*.py") for name in re.findall(r"launch\(\s*(\w+),", source.read_text())
    } - {"kernel"}
    compiled = (TESTS.parent / "benchmarks" / "gpu_kernels.py").read_text()
    assert len(launched) > 10
    assert [name for name in launched if not re.search(rf"\.{name}\b", compiled)] == []
