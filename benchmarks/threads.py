"""Measure what a second thread gives the selection over many crops or frames.

    python benchmarks/threads.py          # under a minute; nothing else should run on the machine

It measures wall time, because two threads take the same CPU time as one. One and two threads take turns.
"""

from __future__ import annotations

import statistics
import time

import common
import torch
import typer

from eadp.core import facility_location_by_quota
from eadp.utils.statistics import median_interval
from eadp.utils.tables import format_markdown

SHAPES = ((64, 169, 8), (64, 169, 32), (5, 576, 64))
"""Blocks, tokens of each, and picks in each: 64 frames of a clip, and the five crops of a LLaVA-NeXT image."""
WIDTH = 1024
PAGE = common.ROOT / "docs" / "methods" / "selection.md"


def main(rounds: int = 41) -> None:
    """Measure, print, and write benchmarks/results/threads.json and the table in docs/methods/selection.md."""
    torch.manual_seed(0)
    rows, measured = [], []
    for blocks, size, picks in SHAPES:
        features, weights = torch.randn(blocks * size, WIDTH), torch.rand(blocks * size)
        ranges = [slice(first, first + size) for first in range(0, blocks * size, size)]
        times: dict[int, list[float]] = {1: [], 2: []}
        for number in range(rounds + 1):
            for threads in (1, 2) if number % 2 else (2, 1):
                torch.set_num_threads(threads)
                start = time.perf_counter()
                facility_location_by_quota(features, weights, ranges, [picks] * blocks)
                if number:
                    times[threads].append(1e3 * (time.perf_counter() - start))
        ratio = median_interval([one / two for one, two in zip(times[1], times[2], strict=True)])
        measured.append({"blocks": blocks, "tokens": size, "picks": picks, "milliseconds": times})
        medians = (f"{statistics.median(times[threads]):.1f} ms" for threads in (1, 2))
        rows.append([f"{blocks} × {size}", str(picks), *medians, f"{ratio:.2f}"])
    table = format_markdown(["blocks × tokens", "picks in each", "one thread", "two threads", "ratio (95 %)"], rows)
    print(table)
    common.write_into(PAGE, "threads", table)
    print(f"written: {common.save('threads', {'rounds': rounds, 'measured': measured})}, {PAGE}")


if __name__ == "__main__":
    typer.run(main)
