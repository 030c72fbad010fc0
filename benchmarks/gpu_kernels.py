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
from eadp.core.triton import (
    continuation,
    cosine,
    dpp,
    facility,
    facility_kernels,
    max_min,
    quotas,
    relevance,
    row_merging,
    row_mixing,
    similarity,
    smoothing,
)
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
    **dict.fromkeys(("sizes", "limits", "changed", "counters", "counts", "table", "images", "quotas"), "*i32"),
    **dict.fromkeys(("gains", "highest", "picked_gains", "figures", "goal", "noise"), "*fp64"),
    **dict.fromkeys(("variance", "unexplained", "factor", "nearest"), "*fp64"),
    **dict.fromkeys(("block_weights", "reservations", "keys", "products", "norms"), "*fp64"),
    **dict.fromkeys(("covered", "before", "cosines", "entropies", "dense_score", "global_score"), "*fp32"),
    **dict.fromkeys(("fused", "extremes", "score", "taps", "smoothed", "polarized", "out", "token_weights"), "*fp32"),
    **dict.fromkeys(("features", "visual", "text"), "*fp16"),
    **dict.fromkeys(("kept", "is_constant"), "*i1"),
    **dict.fromkeys(("order", "starts"), "*i64"),
    **dict.fromkeys(("scores", "unscaled_keys", "merge"), "*fp32"),
    **dict.fromkeys(("is_dominant", "walks", "walked", "row_of"), "*i32"),
    **dict.fromkeys(("rows", "positions", "image_table", "groups", "columns", "visual_numbers"), "*i64"),
    **dict.fromkeys(("kept_columns", "fill", "numbers"), "*i64"),
    **dict.fromkeys(("mask", "ids", "shift", "physical_mask"), "*i64"),
    "valid": "*u8",
    **dict.fromkeys(("sources", "more_sources", "projected", "mixed"), "*fp16"),
    **dict.fromkeys(("sign", "tau", "mu", "gamma", "theta", "beta", "constant_range"), "fp32"),
    **dict.fromkeys(("numerator_epsilon", "denominator_epsilon"), "fp32"),
}
"""Types of the arguments that are not whole numbers. `matrix` and `weights` differ between kernels."""

CHUNK = 1024
GREEDY = {
    "has_goal": False,
    "tie": ties.TIE_MARGIN,
    "error_share": 0.0,
    "error_per_update": facility.ERROR_PER_UPDATE / facility.SAFE_ERROR,
    "compensated": False,
    "chunk": CHUNK,
    "columns": facility.COLUMNS,
}
COMPENSATED = {**GREEDY, "compensated": True, "error_share": facility.COMPENSATED_ERROR / facility.SAFE_ERROR}
ONE_BLOCK = {"resumes": False, "noise_share": ties.ROUNDING_NOISE}
DPP = {
    "noise": ties.ROUNDING_NOISE,
    "tie": ties.TIE_MARGIN,
    "copy_floor": (1 - 2 * ties.ROUNDING_NOISE) ** 2,
    "chunk": CHUNK,
    "rows": dpp.FACTOR_ROWS,
}
WORDS = 128
FUSED = {"has_words": True, "has_pooled": True, "by_floor": False, "words": WORDS}
FUSED_CHUNK = relevance.FUSED_ENTRIES // WORDS
MIXED = {"tile": row_mixing.ROWS, "width": row_mixing.CHANNELS, "depth": row_mixing.DEPTH}
BEFORE_PROJECTOR = {
    "by_column": False,
    "by_number": False,
    "has_more": True,
    "is_placed": False,
    "is_renumbered": False,
}
DEEPSTACK = {"by_column": True, "by_number": True, "has_more": False, "is_placed": True, "is_renumbered": True}
KERNELS: dict[str, tuple[Any, str, dict[str, Any], int]] = {
    "relevance: cosines": (relevance.word_cosines, "", {"tile": relevance.TILE, "depth": relevance.DEPTH}, 4),
    "relevance: entropies": (
        relevance.word_entropies,
        "",
        {"words": relevance.ENTROPY_WORDS, "chunk": relevance.ENTROPY_TOKENS},
        4,
    ),
    "relevance: filter, weights, fusion": (
        relevance.fuse_scores,
        "",
        {**FUSED, "aggregation": 0, "chunk": FUSED_CHUNK},
        8,
    ),
    "relevance: weights per token (video)": (
        relevance.fuse_scores,
        "",
        {**FUSED, "aggregation": 1, "chunk": FUSED_CHUNK},
        8,
    ),
    "relevance: min-max": (relevance.normalize_scores, "", {"by_block": False, "chunk": FUSED_CHUNK}, 4),
    "Gaussian and power": (
        smoothing.smooth_and_sharpen,
        "",
        {"size": 3, "power": 0, "cells": smoothing.CELLS},
        4,
    ),
    "quotas": (quotas.split_budgets, "", {"bisections": quotas.BISECTIONS, "padded": 64}, 4),
    "similarity": (similarity.rebound, "", {"tile": similarity.TILE, "depth": similarity.DEPTH}, 4),
    "facility location: first gains": (
        facility.first_gains,
        "*fp32",
        {"symmetric": True, "chunk": facility.GAIN_CHUNK, "columns": facility.COLUMNS},
        4,
    ),
    "facility location: all picks": (facility_kernels.greedy, "*fp32", {**GREEDY, **ONE_BLOCK}, CHUNK // 128),
    "facility location: all picks, compensated": (
        facility_kernels.greedy,
        "*fp32",
        {**COMPENSATED, **ONE_BLOCK},
        CHUNK // 128,
    ),
    "facility location: large block, begin": (
        facility.begin,
        "",
        {"noise_share": ties.ROUNDING_NOISE, "chunk": CHUNK},
        8,
    ),
    "facility location: large block, one pick": (
        facility_kernels.pick_next,
        "*fp32",
        {**GREEDY, "own": facility.GAIN_CHUNK},
        4,
    ),
    "facility location: large block, one pick, compensated": (
        facility_kernels.pick_next,
        "*fp32",
        {**COMPENSATED, "own": facility.GAIN_CHUNK},
        4,
    ),
    "facility location: large block, last picks": (
        facility_kernels.greedy,
        "*fp32",
        {**GREEDY, **ONE_BLOCK, "resumes": True},
        CHUNK // 128,
    ),
    "DPP: matrix": (cosine.finish_cosines, "", {"weighted": True, "tile": cosine.TILE}, 4),
    "max-min: matrix": (cosine.finish_cosines, "", {"weighted": False, "tile": cosine.TILE}, 4),
    "DPP: all picks": (dpp.dpp_greedy, "*fp64", DPP, CHUNK // 128),
    "DPP: large block, one pick": (dpp.dpp_next, "*fp64", {**DPP, "own": dpp.OWN_CHUNK}, 4),
    "max-min: nearest neighbours": (
        max_min.nearest_neighbours,
        "*fp64",
        {"chunk": max_min.NEIGHBOUR_CHUNK, "rows": max_min.ROWS},
        4,
    ),
    "VisionZip: dominant tokens": (row_merging.find_dominant, "", {"tile": row_merging.TILE}, 4),
    "VisionZip: rows": (row_merging.list_rows, "", {"chunk": row_merging.CHUNK}, 4),
    "VisionZip: nearest targets": (
        row_merging.join_targets,
        "",
        {"tile": row_merging.TILE, "depth": row_merging.DEPTH},
        8,
    ),
    "VisionZip: weights": (row_merging.write_weights, "", {"chunk": row_merging.CHUNK}, 4),
    "merging: sums before the projector": (row_mixing.mix_rows, "", {**MIXED, **BEFORE_PROJECTOR}, 4),
    "merging: sums of DeepStack rows": (row_mixing.mix_rows, "", {**MIXED, **DEEPSTACK}, 4),
    "merging: rows in their places": (row_mixing.place_rows, "", {"chunk": row_mixing.CHUNK}, 4),
    "decode step of padded prompts": (
        continuation.extend_rows,
        "",
        {"has_valid": True, "has_ids": True, "axes": 3, "cells": continuation.CELLS},
        4,
    ),
    "max-min: all picks": (max_min.max_min_greedy, "*fp64", {"tie": ties.TIE_MARGIN, "chunk": CHUNK}, CHUNK // 128),
}
"""Every kernel as it is launched for blocks of 1,024 tokens or more: the function, the type of the matrix, constants,
and warps."""


def compile_kernel(name: str, target: str) -> dict[str, int]:
    """Compile one kernel for one target; return its registers per thread and its spills in bytes."""
    kernel, matrix, constants, warps = KERNELS[name]
    # The weights of words are called as those of tokens.
    types = {**POINTERS, "matrix": matrix, "weights": "*fp32"}
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
    head = ["kernel", *TARGETS]
    body = [[name, *(f"{e['registers']} / {e['spills']}" for e in row.values())] for name, row in found.items()]
    table = Table(*head)
    for row in body:
        table.add_row(*row)
    Console().print(table)
    common.write_into(common.ROOT / "docs" / "guides" / "gpu.md", "gpu_kernels", format_markdown(head, body))


if __name__ == "__main__":
    typer.run(main)
