"""What is known about the selection on a GPU without one: launches and waits, and a model of the time.

    python benchmarks/gpu.py --model   # the model of the time
    python benchmarks/gpu.py --counts  # launches and waits on a pretend device

Both are written into docs/guides/gpu.md. `eadp bench --gpu` measures on a GPU.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import common
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from eadp.core import facility_location
from eadp.measure.gpu import CASES, make_problem, name_case
from eadp.utils.tables import format_markdown

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


def print_table(head: list[str], body: list[list[str]]) -> None:
    """Print a table to the terminal."""
    table = Table(*head)
    for row in body:
        table.add_row(*row)
    Console().print(table)


def count_entries(matrices: Tensor, weights: Tensor, keep: int) -> int:
    """Count the entries of the largest block's matrix that the kernel reads after `first_gains`."""
    most = 0
    for matrix, weight in zip(matrices, weights, strict=True):
        n, covered, entries = len(weight), torch.zeros_like(weight), 0
        for pick in facility_location(matrix, weight, keep, symmetric=True).indices:
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


def main(model: bool = False, counts: bool = False) -> None:
    """Write the model of the time, the counts of launches, or both, into the docs. None of them needs a GPU."""
    if not (model or counts):
        raise typer.BadParameter("give --model, --counts or both; `eadp bench --gpu` measures on a GPU")
    if model:
        write_model()
    if counts:
        write_counts()


if __name__ == "__main__":
    typer.run(main)
