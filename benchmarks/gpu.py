"""Measure the selection on a GPU: our Triton kernel, our torch path, the published loop, and a loop that reads back.

    python benchmarks/gpu.py           # on a machine with a CUDA or ROCm GPU: about a minute
    python benchmarks/gpu.py --model   # without one: the model of the time, written into docs/guides/gpu.md
    python benchmarks/gpu.py --counts  # without one: launches and waits on a pretend device, written there, too

Times are by CUDA events, medians of interleaved runs. Every solver gets the same matrices and must make the same picks.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from eadp import core
from eadp.core.batched import solve_facility
from eadp.utils.tables import format_markdown

OURS, TORCH, LOOP, READ_BACK = "triton", "torch", "published loop", "loop that reads back"
CASES = [  # Number of blocks, grid of a block, picks per block.
    (1, (24, 24), 64),
    (1, (32, 32), 128),
    (1, (32, 32), 512),
    (5, (24, 24), 64),
    (64, (13, 13), 32),
    (1, (64, 64), 512),
]
PAPER_MICROSECONDS_PER_PICK = 281
"""What the paper reports for one pick at N = 1,024."""

PAGE = common.ROOT / "docs" / "guides" / "gpu.md"

LAUNCH_MICROSECONDS = 4.0
"""Assumed time of one launch."""

STEP_MICROSECONDS = 4.0
"""Assumed time of one pick inside a kernel, without its reading: a few reductions and dependent loads."""


@dataclass(frozen=True)
class Card:
    """A GPU, by its data sheet: memory bandwidth, and per processor clock, L2 bandwidth and float64 operations."""

    name: str
    bandwidth: float  # GB/s
    clock: float  # GHz
    bytes_per_clock: int  # from L2, per processor
    float64_per_clock: int  # fused multiply-adds, per processor


CARDS = [
    Card("RTX 3090", 936, 1.7, 64, 2),
    Card("A100", 2039, 1.4, 64, 32),
    Card("H100", 3350, 1.75, 64, 64),
    Card("MI300X", 5300, 2.1, 64, 64),
]

FLOAT64_PER_ENTRY = 4
"""Operations in float64 for one entry of the matrix in an update: two conversions, a subtraction, a multiply-add."""


def make_problem(blocks: int, grid: core.Grid) -> tuple[Tensor, Tensor]:
    """Return the B×N×N similarities and B×N weights of image-like tokens, on the CPU."""
    matrices = torch.stack([core.token_similarity(common.image_like(*grid, 64, block)) for block in range(blocks)])
    generator = torch.Generator().manual_seed(0)
    return matrices, torch.rand(blocks, grid[0] * grid[1], generator=generator) ** 2


def published_loop(matrices: Tensor, weights: Tensor, keep: int) -> Tensor:
    """Run the dense greedy algorithm as in the release: all blocks in one loop, with B×N×N temporaries per pick."""
    covered = torch.zeros_like(weights)
    picked = torch.zeros_like(weights, dtype=torch.bool)
    block = torch.arange(len(weights), device=weights.device)
    order = []
    for _ in range(keep):
        gains = (weights[:, None] * torch.relu(matrices - covered[:, None])).sum(dim=2)
        pick = gains.masked_fill(picked, -torch.inf).argmax(dim=1)
        picked[block, pick] = True
        covered = torch.maximum(covered, matrices[block, pick])
        order.append(pick)
    return torch.stack(order, dim=1)


def loop_that_reads_back(matrices: Tensor, weights: Tensor, keep: int) -> Tensor:
    """Run the same algorithm in MMTok's style: block after block, and the host reads each pick."""
    order = []
    for matrix, weight in zip(matrices, weights, strict=True):
        covered, chosen = torch.zeros_like(weight), []
        for _ in range(keep):
            gains = torch.relu(matrix - covered) @ weight
            gains[chosen] = -torch.inf
            chosen.append(int(gains.argmax().item()))
            covered = torch.maximum(covered, matrix[chosen[-1]])
        order.append(chosen)
    return torch.tensor(order)


def time_by_events(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median milliseconds of each call on the current GPU, by events; two rounds warm up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(repeats + 2):
        for name in list(calls)[:: -1 if round_ % 2 else 1]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            calls[name]()
            end.record()
            torch.cuda.synchronize()
            if round_ >= 2:
                times[name].append(start.elapsed_time(end))
    return {name: statistics.median(values) for name, values in times.items()}


def measure(blocks: int, grid: core.Grid, keep: int, repeats: int) -> dict[str, Any]:
    """Time all solvers on one case, after a check that ours makes the picks of numba."""
    from eadp.core.triton.facility import solve

    matrices, weights = make_problem(blocks, grid)
    expected = [
        core.facility_location(s, w, keep, symmetric=True).indices.tolist()
        for s, w in zip(matrices, weights, strict=True)
    ]
    matrices, weights = matrices.cuda(), weights.cuda()
    sizes, limits = (torch.full((blocks,), k, dtype=torch.int32, device="cuda") for k in (weights.shape[1], keep))
    calls: dict[str, Callable[[], object]] = {
        OURS: lambda: solve(matrices, weights, sizes, limits, None, keep, symmetric=True),
        TORCH: lambda: solve_facility(matrices, weights, sizes, limits, None, keep),
        LOOP: lambda: published_loop(matrices, weights, keep),
        READ_BACK: lambda: loop_that_reads_back(matrices, weights, keep),
    }
    for name in (OURS, TORCH):
        if calls[name]().order.tolist() != expected:  # type: ignore[attr-defined]
            raise SystemExit(
                f"{name} picked other tokens than numba at {blocks}×{weights.shape[1]}, K={keep}: please report this"
            )
    return {"blocks": blocks, "n": weights.shape[1], "k": keep, "ms": time_by_events(calls, repeats)}


def name_case(blocks: int, n: int) -> str:
    """Return "5×576", or "576" for one block."""
    return f"{blocks}×{n}" if blocks > 1 else str(n)


def print_table(head: list[str], body: list[list[str]]) -> None:
    """Print a table to the terminal."""
    table = Table(*head)
    for row in body:
        table.add_row(*row)
    Console().print(table)


def measure_all(repeats: int, folder: Path) -> None:
    """Measure every case on this machine's GPU, print the table and write the figures."""
    if not torch.cuda.is_available():
        raise SystemExit(
            "There is no CUDA or ROCm GPU here, or torch was built without it. "
            "Run this on a machine with a GPU; --model and --counts need none."
        )
    card = torch.cuda.get_device_name()
    rows = [measure(*case, repeats) for case in CASES]
    solvers = (OURS, TORCH, LOOP, READ_BACK)
    head = ["tokens", "K per block", "µs per pick", "paper", *(f"{name}, ms" for name in solvers)]
    body = []
    for row in rows:
        paper = f"{PAPER_MICROSECONDS_PER_PICK} µs" if (row["blocks"], row["n"]) == (1, 1024) else "–"
        times = [f"{row['ms'][name]:.2f}" for name in solvers]
        per_pick = 1000 * row["ms"][OURS] / row["k"]
        body.append([name_case(row["blocks"], row["n"]), str(row["k"]), f"{per_pick:.1f}", paper, *times])
    print_table(head, body)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"gpu-{re.sub(r'[^A-Za-z0-9]+', '-', card).strip('-').lower()}.json"
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "rocm": torch.version.hip}
    path.write_text(json.dumps({"card": card, **versions, "cases": rows}, indent=1) + "\n")
    print(f"{card}: written to {path}. To send it in, open an issue of this project and attach the file.")


def count_entries(matrices: Tensor, weights: Tensor, keep: int) -> int:
    """Count the entries of the largest block's matrix that the kernel reads after `first_gains`."""
    most = 0
    for matrix, weight in zip(matrices, weights, strict=True):
        n, covered, entries = len(weight), torch.zeros_like(weight), 0
        for pick in core.facility_location(matrix, weight, keep, symmetric=True).indices:
            rises = int((matrix[pick] > covered).sum())
            entries += n * (n if 4 * rises > 3 * n else rises)
            covered = torch.maximum(covered, matrix[pick])
        most = max(most, entries)
    return most


def model_milliseconds(card: Card, blocks: int, n: int, keep: int, entries: int) -> tuple[float, float]:
    """Return the modelled time of our kernels and of the published loop in ms."""
    matrix_bytes = 4 * blocks * n * n
    first = matrix_bytes / card.bandwidth / 1e6
    clocks = entries * max(4 / card.bytes_per_clock, FLOAT64_PER_ENTRY / card.float64_per_clock)
    ours = 2 * LAUNCH_MICROSECONDS / 1e3 + first + keep * STEP_MICROSECONDS / 1e3 + clocks / card.clock / 1e6
    # Subtract, clamp, multiply, sum: seven passes over B×N×N, and eleven launches per pick.
    loop = keep * (11 * LAUNCH_MICROSECONDS / 1e3 + 7 * matrix_bytes / card.bandwidth / 1e6)
    return ours, loop


def write_model() -> None:
    """Print the model of the time and write it into the docs."""
    head = ["tokens", "K per block", *(f"{card.name}: ours / loop, ms" for card in CARDS)]
    body = []
    for blocks, grid, keep in CASES:
        matrices, weights = make_problem(min(blocks, 5), grid)
        entries, n = count_entries(matrices, weights, keep), grid[0] * grid[1]
        times = (model_milliseconds(card, blocks, n, keep, entries) for card in CARDS)
        body.append([name_case(blocks, n), str(keep), *(f"{ours:.2f} / {loop:.1f}" for ours, loop in times)])
    print_table(head, body)
    common.write_into(PAGE, "gpu_model", format_markdown(head, body))


def write_counts() -> None:
    """Count launches, waits and copies on the pretend device and write them into the docs."""
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads this when it is imported.
    sys.path.insert(0, str(common.ROOT / "tests"))
    from core.test_device_counts import CASES as SELECTIONS
    from core.test_device_counts import count

    head = [
        "score, smooth, select",
        "launches, K=1",
        "launches, K=3",
        "waits",
        "copies to the device",
        "torch path: launches per pick",
    ]
    body = []
    for name, blocks in SELECTIONS.items():
        one, three = count(blocks, 1), count(blocks, 3)
        per_pick = count(blocks, 2, "torch").launches.total() - count(blocks, 1, "torch").launches.total()
        figures = [one.launches, three.launches, three.waits, three.copies]
        body.append([name, *(str(each.total()) for each in figures), str(per_pick)])
    print_table(head, body)
    common.write_into(PAGE, "gpu_counts", format_markdown(head, body))


def main(repeats: int = 20, model: bool = False, counts: bool = False, out: Path = Path("out")) -> None:
    """Measure on this machine's GPU; or write the model of the time or the counts of launches, which need none."""
    if model:
        write_model()
    if counts:
        write_counts()
    if not (model or counts):
        measure_all(repeats, out)


if __name__ == "__main__":
    typer.run(main)
