"""What is known about the selection on a GPU without one: launches and waits, and a model of the time.

    python benchmarks/gpu.py --model   # the model of the time
    python benchmarks/gpu.py --counts  # launches and waits on a pretend device
    python benchmarks/gpu.py --picture # the design, docs/img/gpu.svg

All are written into docs/guides/gpu.md. `eadp bench --gpu` measures on a GPU.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

os.environ["TRITON_INTERPRET"] = "1"  # Triton reads this when it is imported: --counts runs its kernels on the CPU.

import common
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from eadp.core import facility_location
from eadp.core.triton import facility
from eadp.measure.gpu import CASES, make_problem, name_case
from eadp.utils.tables import format_markdown

PAGE = common.ROOT / "docs" / "guides" / "gpu.md"

LAUNCH_MICROSECONDS = 4.0
"""Assumed time of one launch."""

STEP_MICROSECONDS = 4.0
"""Assumed time of one pick inside a kernel, without its reading: a few reductions and dependent loads."""


@dataclass(frozen=True)
class Card:
    """A GPU by its data sheet: bandwidth, processors, and what one processor does per clock."""

    name: str
    bandwidth: float  # GB/s
    processors: int
    clock: float  # GHz
    bytes_per_clock: int  # from L2
    float64_per_clock: int  # fused multiply-adds
    float32_per_clock: int


CARDS = [
    Card("RTX 3090", 936, 82, 1.7, 64, 2, 128),
    Card("A100", 2039, 108, 1.4, 64, 32, 64),
    Card("H100", 3350, 132, 1.75, 64, 64, 128),
    Card("MI300X", 5300, 304, 2.1, 64, 64, 128),
]

FLOAT64_PER_ENTRY = 4
"""Operations in float64 for one entry of the matrix in an update: two conversions, a subtraction, a multiply-add."""

FLOAT32_PER_ENTRY = 24
"""Operations in float32 for one entry with compensated sums."""

BYTES_PER_SCAN = 32
"""Bytes per token that every program reads to find a pick of a large block: gains, weights, coverage and two rows."""


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
    operations = min(FLOAT64_PER_ENTRY / card.float64_per_clock, FLOAT32_PER_ENTRY / card.float32_per_clock)
    clocks = entries * max(4 / card.bytes_per_clock, operations)
    if n > facility.LARGEST_AT_ONCE and blocks < facility.MANY_BLOCKS:
        programs = min(card.processors, -(-n // facility.GAIN_CHUNK))
        launches = 3 + keep + keep // 8 + 8
        clocks = clocks / programs + keep * BYTES_PER_SCAN * n / card.bytes_per_clock
        per_pick = 0.0
    else:
        launches, per_pick = 2, keep * STEP_MICROSECONDS / 1e3
    ours = launches * LAUNCH_MICROSECONDS / 1e3 + first + per_pick + clocks / card.clock / 1e6
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


def draw_design() -> None:
    """Draw the path of a selection as docs/img/gpu.svg."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "eadp"  # The same drawing gives the same file.
    figure, axis = plt.subplots(figsize=(11, 3.4), layout="constrained")
    axis.set(xlim=(0, 11), ylim=(0, 3.4))
    axis.axis("off")

    def box(x: float, y: float, title: str, text: str, colour: str) -> None:
        axis.add_patch(plt.Rectangle((x, y), 1.75, 1.0, facecolor=colour, edgecolor="#333333", linewidth=0.8))
        axis.text(x + 0.875, y + 0.72, title, ha="center", va="center", fontsize=9, weight="bold")
        axis.text(x + 0.875, y + 0.3, text, ha="center", va="center", fontsize=7.5)

    def arrow(x: float, y: float, dx: float, dy: float) -> None:
        style = {"arrowstyle": "->", "color": "#333333"}
        axis.annotate("", xy=(x + dx, y + dy), xytext=(x, y), arrowprops=style)

    stages = [
        ("cosines", "tiles of words × tokens\nof every block"),
        ("entropies", "words × blocks"),
        ("filter, fuse", "tiles of tokens × blocks"),
        ("min-max", "tiles of tokens × blocks"),
        ("Gaussian, power", "tiles of cells × maps"),
    ]
    for which, (title, text) in enumerate(stages):
        box(0.1 + 2.2 * which, 2.2, title, text, "#cfe3f5")
        if which:
            arrow(2.2 * which - 0.35, 2.7, 0.44, 0)
    box(2.3, 0.3, "similarity", "tiles of the matrix\nand their mirror images", "#d9ecd0")
    box(5.6, 0.3, "first gains", "128 candidates × blocks;\nchecks of the input", "#f8e3c4")
    box(8.9, 0.3, "all picks", "one program per block\n(N > 2,048: a launch per pick,\nmany programs)", "#f8e3c4")
    arrow(4.1, 0.8, 1.45, 0)
    arrow(7.4, 0.8, 1.45, 0)
    arrow(9.8, 2.15, 0, -0.8)
    axis.text(9.9, 1.75, "weights", fontsize=8)
    axis.text(0.1, 3.3, "aligned tokens, words", fontsize=8, va="center")
    axis.text(0.1, 0.8, "features", fontsize=8, va="center")
    arrow(0.75, 0.8, 1.5, 0)
    axis.text(9.8, 0.12, "indices and gains stay on the device", fontsize=8, ha="center")
    figure.savefig(common.IMAGES / "gpu.svg", metadata={"Date": None})


def write_counts() -> None:
    """Count launches, waits and copies on the pretend device and write them into the docs."""
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


METHODS = ("eadp", "cdpruner", "divprune", "visionzip", "fastv")
PREFILLS_BEFORE = {
    ("llava", "one image"): ("130 / 17", "127 / 14", "95 / 15", "157 / 25", "83 / 13"),
    ("llava_next", "five crops"): ("186 / 35", "144 / 19", "112 / 20", "255 / 45", "83 / 14"),
    ("llava", "batch of 4"): ("411 / 51", "399 / 39", "271 / 43", "454 / 83", "158 / 34"),
    ("llava_onevision", "64 frames"): ("952 / 270", "1009 / 77", "347 / 78", "1833 / 85", "83 / 13"),
}
"""Launches / waits of prefills while every block was read back, counted once with the same helper; 5 tokens stayed."""


def write_prefills() -> None:
    """Write the launches and waits of whole prefills into the docs, from the table that a test holds."""
    from helpers.table_of_prefills import read_table

    table, body = read_table(), []
    for (family, inputs), before in PREFILLS_BEFORE.items():
        for method, figures in zip(METHODS, before, strict=True):
            launches, waits = table[family, inputs, method]
            body.append([family, inputs, method, figures, f"{launches} / {waits}"])
    head = ["family", "input", "method", "before", "now"]
    print_table(head, body)
    common.write_into(PAGE, "gpu_prefills", format_markdown(head, body))


def main(model: bool = False, counts: bool = False, picture: bool = False) -> None:
    """Write the model of the time, the counts of launches or the picture into the docs. None of them needs a GPU."""
    if not (model or counts or picture):
        raise typer.BadParameter("give --model, --counts or --picture; `eadp bench --gpu` measures on a GPU")
    if picture:
        draw_design()
    if model:
        write_model()
    if counts:
        write_counts()
        write_prefills()


if __name__ == "__main__":
    typer.run(main)
