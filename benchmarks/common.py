"""What the benchmarks share: interleaved timing in CPU time, a description of the machine, image-like tokens."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numba
import torch
from torch.nn import functional as F

from eadp.measure.machine import machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "img"


def one_thread() -> None:
    torch.set_num_threads(1)
    numba.set_num_threads(1)


def interleaved(
    calls: dict[str, Callable[[], object]],
    repeats: int,
    around: dict[str, Callable[[], AbstractContextManager[object]]] | None = None,
) -> dict[str, list[float]]:
    """Milliseconds of CPU time of each call, in rounds: every call once a round, forth and back in turn, so that none
    always runs in the other's wake; after one round of warming up. around: what a call runs in, not timed."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(repeats + 1):
        for name in list(calls)[:: -1 if round_ % 2 else 1]:
            with (around or {}).get(name, nullcontext)():
                start = time.process_time_ns()
                calls[name]()
                took = (time.process_time_ns() - start) / 1e6
            if round_:
                times[name].append(took)
    return times


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in times.items()}


def save(name: str, result: dict[str, Any]) -> Path:
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n")
    return path


def write_into(page: Path, name: str, text: str) -> None:
    """Put `text` between the marks `<!-- name: … -->` and `<!-- end -->` of a page."""
    marks = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- end -->)", re.DOTALL)
    old = page.read_text()
    if not marks.search(old):
        raise ValueError(f"{page} has no place marked {name}")
    page.write_text(marks.sub(lambda found: found[1] + text.rstrip() + "\n" + found[2], old))


def image_like(rows: int, columns: int, width: int, seed: int = 0) -> torch.Tensor:
    """rows·columns tokens whose likeness falls with distance, as those of a picture do: smooth fields plus noise."""
    g = torch.Generator().manual_seed(seed)
    coarse = torch.randn(1, 48, max(2, rows // 4), max(2, columns // 4), generator=g)
    fields = F.interpolate(coarse, size=(rows, columns), mode="bicubic")[0].flatten(1).T
    mixed = fields @ torch.randn(48, width, generator=g)
    return mixed + 3 * torch.randn(rows * columns, width, generator=g)
