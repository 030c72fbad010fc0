"""Compile every Triton kernel for GPUs that need not be here, and report registers and spills.

    python benchmarks/gpu_kernels.py          # print the table and write it into docs/guides/gpu.md
    python benchmarks/gpu_kernels.py --json   # print the figures as JSON, for the tests

Triton compiles without a GPU. Its wheel brings NVIDIA's ptxas, which reports what a kernel takes; for AMD the figures
are in the compiled code.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # With it, Triton would replace the compiler by its interpreter.

import common
import triton
import typer
from rich.console import Console
from rich.table import Table
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from eadp.core import ties
from eadp.core.triton import diversity, facility, similarity
from eadp.utils.tables import format_markdown

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_86": GPUTarget("cuda", 86, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
"""A100, RTX 3090, H100, B200, MI300X."""

POINTERS = {
    **dict.fromkeys(("sizes", "limits", "changed"), "*i32"),
    **dict.fromkeys(("gains", "highest", "picked_gains", "figures", "goal", "noise"), "*fp64"),
    **dict.fromkeys(("variance", "unexplained", "factor", "nearest"), "*fp64"),
    **dict.fromkeys(("weights", "covered", "before"), "*fp32"),
    "features": "*fp16",
    "out": "*fp32",
    "order": "*i64",
}
"""Types of the arguments that are tensors; `matrix` differs between kernels, the others are whole numbers."""

CHUNK = 1024
KERNELS: dict[str, tuple[Any, str, dict[str, Any], int]] = {
    "similarity": (similarity.rebound, "*fp32", {"tile": similarity.TILE, "depth": similarity.DEPTH}, 4),
    "facility location: first gains": (
        facility.first_gains,
        "*fp32",
        {"symmetric": True, "chunk": facility.GAIN_CHUNK, "columns": facility.COLUMNS},
        4,
    ),
    "facility location: all picks": (
        facility.greedy,
        "*fp32",
        {
            "has_goal": False,
            "noise_share": ties.ROUNDING_NOISE,
            "tie": ties.TIE_MARGIN,
            "error_per_update": facility.ERROR_PER_UPDATE / facility.SAFE_ERROR,
            "chunk": CHUNK,
            "columns": facility.COLUMNS,
        },
        CHUNK // 128,
    ),
    "DPP: all picks": (
        diversity.dpp_greedy,
        "*fp64",
        {
            "noise": ties.ROUNDING_NOISE,
            "tie": ties.TIE_MARGIN,
            "copy_floor": (1 - 2 * ties.ROUNDING_NOISE) ** 2,
            "chunk": CHUNK,
            "rows": diversity.FACTOR_ROWS,
        },
        CHUNK // 128,
    ),
    "max-min: nearest neighbours": (
        diversity.nearest_neighbours,
        "*fp64",
        {"chunk": diversity.NEIGHBOUR_CHUNK, "rows": diversity.ROWS},
        4,
    ),
    "max-min: all picks": (
        diversity.max_min_greedy,
        "*fp64",
        {"tie": ties.TIE_MARGIN, "chunk": CHUNK},
        CHUNK // 128,
    ),
}
"""The kernels for blocks of up to 1,024 tokens: the function, the type of the matrix, constants, and warps."""


def compile_kernel(name: str, target: str) -> dict[str, int]:
    """Compile one kernel for one target; return its registers per thread and its spills in bytes."""
    kernel, matrix, constants, warps = KERNELS[name]
    types = {**POINTERS, "matrix": matrix}
    signature = {
        argument: "constexpr" if argument in constants else types.get(argument, "i32") for argument in kernel.arg_names
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    built = triton.compile(source, target=TARGETS[target], options={"num_warps": warps})
    if "ptx" in built.asm:
        return _report_of_ptxas(built.asm["ptx"], target)
    found = dict(re.findall(r"\.(vgpr_count|vgpr_spill_count):\s*(\d+)", built.asm["amdgcn"]))
    return {"registers": int(found["vgpr_count"]), "spills": 4 * int(found["vgpr_spill_count"])}


def _report_of_ptxas(ptx: str, target: str) -> dict[str, int]:
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    ptxas = folder / ("ptxas-blackwell" if target == "sm_100" and (folder / "ptxas-blackwell").exists() else "ptxas")
    architecture = re.findall(r"\.target (sm_\w+)", ptx)[0]
    with tempfile.TemporaryDirectory() as work:
        source = Path(work) / "kernel.ptx"
        source.write_text(ptx)
        command = [str(ptxas), "-v", f"--gpu-name={architecture}", str(source), "-o", os.devnull]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
    return {"registers": int(re.findall(r"Used (\d+) registers", report)[0]), "spills": sum(map(int, spills))}


def main(as_json: bool = typer.Option(False, "--json", help="Print the figures as JSON.")) -> None:
    """Compile all kernels for all targets."""
    found = {name: {target: compile_kernel(name, target) for target in TARGETS} for name in KERNELS}
    if as_json:
        print(json.dumps(found))
        return
    head = ["kernel, up to 1,024 tokens per block", *TARGETS]
    body = [[name, *(f"{e['registers']} / {e['spills']}" for e in row.values())] for name, row in found.items()]
    table = Table(*head)
    for row in body:
        table.add_row(*row)
    Console().print(table)
    common.write_into(common.ROOT / "docs" / "guides" / "gpu.md", "gpu_kernels", format_markdown(head, body))


if __name__ == "__main__":
    typer.run(main)
