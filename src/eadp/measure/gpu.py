"""Measure the selection and the prefill on a GPU, next to the published loop, a loop that reads back, and torch."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from eadp.core import Grid, facility_location, token_similarity
from eadp.core.batched import solve_facility
from eadp.loading import load_guide, load_model
from eadp.measure.bench import BenchRow, bench
from eadp.measure.loops import LoopThatReadsBack, PublishedLoop, loop_that_reads_back, published_loop
from eadp.measure.samples import pocket_samples
from eadp.measure.stopwatch import Clock, make_clock
from eadp.methods import EADP
from eadp.models.prompt import build_inputs
from eadp.utils.images import make_square

OURS, TORCH, LOOP, READ_BACK = "triton", "torch", "published loop", "loop that reads back"
SOLVERS = (OURS, TORCH, LOOP, READ_BACK)

CASES: list[tuple[int, Grid, int]] = [
    (1, (24, 24), 64),
    (1, (32, 32), 128),
    (1, (32, 32), 512),
    (5, (24, 24), 64),
    (64, (13, 13), 32),
    (1, (64, 64), 512),
]
"""Number of blocks, grid of a block, picks per block."""

PAPER_MICROSECONDS_PER_PICK = 281
"""What the paper reports for one pick at N = 1,024."""

NO_GPU = (
    "There is no CUDA or ROCm GPU here, or torch was built without it. Run `eadp bench --gpu` on a machine with a GPU; "
    "docs/guides/gpu.md has a model of the time."
)
SEND_IN = "To send it in, open an issue of this project and attach the file."


def image_like(rows: int, columns: int, width: int, seed: int = 0) -> Tensor:
    """Make rows·columns tokens whose similarity falls with distance, as in an image: smooth fields plus noise."""
    g = torch.Generator().manual_seed(seed)
    coarse = torch.randn(1, 48, max(2, rows // 4), max(2, columns // 4), generator=g)
    fields = F.interpolate(coarse, size=(rows, columns), mode="bicubic")[0].flatten(1).T
    mixed = fields @ torch.randn(48, width, generator=g)
    return mixed + 3 * torch.randn(rows * columns, width, generator=g)


def make_problem(blocks: int, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return the B×N×N similarities and B×N weights of image-like tokens, on the CPU."""
    matrices = torch.stack([token_similarity(image_like(*grid, 64, block)) for block in range(blocks)])
    generator = torch.Generator().manual_seed(0)
    return matrices, torch.rand(blocks, grid[0] * grid[1], generator=generator) ** 2


def time_interleaved(calls: dict[str, Callable[[], object]], repeats: int, clock: Clock) -> dict[str, float]:
    """Return the median milliseconds of each call; all take turns, and two rounds warm up."""
    stamps: dict[str, list[tuple[Any, Any]]] = {name: [] for name in calls}
    for round_ in range(repeats + 2):
        for name in list(calls)[:: -1 if round_ % 2 else 1]:
            start = clock.stamp()
            calls[name]()
            stamps[name].append((start, clock.stamp()))
    return {name: statistics.median(clock.elapsed_ms(*each) for each in pairs[2:]) for name, pairs in stamps.items()}


@dataclass(frozen=True)
class GpuReport:
    """What was measured on one GPU.

    Attributes:
        card: The name of the GPU.
        selections: Per case: the number of blocks, their tokens and picks, and milliseconds by solver.
        prefills: Milliseconds of a prefill by row: the unpruned model, EADP by its own kernels, and EADP by the others.
        model: The model of the prefills.
    """

    card: str
    selections: list[dict[str, Any]]
    prefills: dict[str, float]
    model: str

    def tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """Return the head and the rows of a table of selections and of one of prefills."""
        head = ["tokens", "K per block", "µs per pick", "paper", *(f"{name}, ms" for name in SOLVERS)]
        body = []
        for row in self.selections:
            is_papers = (row["blocks"], row["n"]) == (1, 1024)
            times = [f"{row['ms'][name]:.2f}" for name in SOLVERS]
            per_pick = 1000 * row["ms"][OURS] / row["k"]
            paper = f"{PAPER_MICROSECONDS_PER_PICK} µs" if is_papers else "–"
            body.append([name_case(row["blocks"], row["n"]), str(row["k"]), f"{per_pick:.1f}", paper, *times])
        unpruned = next(iter(self.prefills.values()), 1.0)
        prefills = [[name, f"{ms:.2f}", f"{ms / unpruned:.2f}"] for name, ms in self.prefills.items()]
        return [(head, body), ([f"prefill of {self.model}", "ms", "ratio"], prefills)]

    def write(self, folder: Path) -> Path:
        """Write the figures as JSON into a folder, under the card's name; return the file."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"gpu-{re.sub(r'[^A-Za-z0-9]+', '-', self.card).strip('-').lower()}.json"
        versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "rocm": torch.version.hip}
        figures = {"selections": self.selections, "prefill_model": self.model, "prefills_ms": self.prefills}
        path.write_text(json.dumps({"card": self.card, **versions, **figures}, indent=1) + "\n")
        return path


def name_case(blocks: int, n: int) -> str:
    """Return "5×576", or "576" for one block."""
    return f"{blocks}×{n}" if blocks > 1 else str(n)


def measure_gpu(
    *,
    repeats: int = 20,
    cases: Sequence[tuple[int, Grid, int]] = CASES,
    model: str = "random:llava-1.5-7b",
    layers: int | None = 4,
    keep: int = 64,
    samples: int = 8,
    dtype: str = "float16",
    device: torch.device | None = None,
    progress: Callable[[str], None] = lambda name: None,
) -> GpuReport:
    """Measure selections and prefills on this machine's GPU.

    Args:
        repeats: Timed rounds of each selection.
        cases: The selections: number of blocks, grid of a block, picks per block.
        model: The model of the prefills.
        layers: Layers of a random model.
        keep: The budget of the prefills.
        samples: Timed rounds of the prefills.
        dtype: The type of the model's weights.
        device: The device. None for the current GPU.
        progress: Called with the name of what is measured next.

    Raises:
        ValueError: If there is no GPU, or a solver picks other tokens than the CPU.
    """
    if device is None:
        if not torch.cuda.is_available():
            raise ValueError(NO_GPU)
        device = torch.device("cuda", torch.cuda.current_device())
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    clock = make_clock("wall", device)
    selections = []
    for blocks, grid, picks in cases:
        progress(f"{name_case(blocks, grid[0] * grid[1])} tokens, K = {picks}")
        selections.append(_measure_selection(blocks, grid, picks, repeats, device, clock))
    progress(f"prefills of {model}")
    return GpuReport(card, selections, _measure_prefills(model, layers, keep, samples, dtype, device, clock), model)


def _measure_selection(
    blocks: int, grid: Grid, keep: int, repeats: int, device: torch.device, clock: Clock
) -> dict[str, Any]:
    """Time all solvers on one case, after a check that ours make the picks of the CPU."""
    from eadp.core.triton.facility import solve

    matrices, weights = make_problem(blocks, grid)
    parts = zip(matrices, weights, strict=True)
    expected = [facility_location(s, w, keep, symmetric=True, backend="numba").indices.tolist() for s, w in parts]
    matrices, weights = matrices.to(device), weights.to(device)
    n = weights.shape[1]
    sizes, limits = (torch.full((blocks,), k, dtype=torch.int32, device=device) for k in (n, keep))
    calls: dict[str, Callable[[], Any]] = {
        OURS: lambda: solve(matrices, weights, sizes, limits, None, keep, symmetric=True).order,
        TORCH: lambda: solve_facility(matrices, weights, sizes, limits, None, keep).order,
        LOOP: lambda: published_loop(matrices, weights, keep),
        READ_BACK: lambda: loop_that_reads_back(matrices, weights, keep),
    }
    for name in (OURS, TORCH):
        if calls[name]().tolist() != expected:
            raise ValueError(
                f"{name} picked other tokens than the CPU at {name_case(blocks, n)} tokens, K = {keep}: this is a "
                "fault of eadp; please report it with the name of the GPU"
            )
    return {"blocks": blocks, "n": n, "k": keep, "ms": time_interleaved(calls, repeats, clock)}


def _measure_prefills(
    name: str, layers: int | None, keep: int, samples: int, dtype: str, device: torch.device, clock: Clock
) -> dict[str, float]:
    """Return the median milliseconds of a prefill of the unpruned model and of EADP with each solver."""
    from eadp.architectures import untrained

    model, processor = load_model(name, dtype=dtype, device=str(device), layers=layers)
    side = untrained.image_side(model.config)
    inputs = [
        build_inputs(processor, [make_square(sample.load_image(), side)], [sample.question])
        for sample in pocket_samples(samples + 2)
    ]
    rows = {
        f"EADP, {OURS}": EADP(keep=keep, backend="triton"),
        f"EADP, {TORCH}": EADP(keep=keep, backend="torch"),
        f"EADP, {LOOP}": PublishedLoop(keep=keep),
        f"EADP, {READ_BACK}": LoopThatReadsBack(keep=keep),
    }
    report = bench(
        name,
        model,
        processor,
        [BenchRow(method) for method in rows.values()],
        inputs,
        clock=clock,
        guide=load_guide(name, model, processor),
        new_tokens=1,
        warmup=2,
    )
    names = ["all tokens", *rows]
    return {
        label: statistics.median(result.values("prefill")) for label, result in zip(names, report.results, strict=True)
    }
