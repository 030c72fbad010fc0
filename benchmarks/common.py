"""Shared by the benchmarks: interleaved timing in CPU time, files of results, and tokens that resemble an image's."""

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

from eadp.measure.machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "img"


def use_one_thread() -> None:
    """Restrict torch and numba to one thread."""
    torch.set_num_threads(1)
    numba.set_num_threads(1)


def time_interleaved(
    calls: dict[str, Callable[[], object]],
    repeats: int,
    contexts: dict[str, Callable[[], AbstractContextManager[object]]] | None = None,
) -> dict[str, list[float]]:
    """Time several calls in rounds, after one warm-up round.

    Every round runs every call once, in one order and in the next round in reverse, so that no call always runs right
    after the same other one.

    Args:
        calls: The calls by name.
        repeats: Number of timed rounds.
        contexts: Context managers by name, in which a call runs. Entering and leaving them is not timed.

    Returns:
        Milliseconds of CPU time by name, one value per round.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(repeats + 1):
        for name in list(calls)[:: -1 if round_ % 2 else 1]:
            with (contexts or {}).get(name, nullcontext)():
                start = time.process_time_ns()
                calls[name]()
                took = (time.process_time_ns() - start) / 1e6
            if round_:
                times[name].append(took)
    return times


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    """Compute the median per name."""
    return {name: statistics.median(values) for name, values in times.items()}


def save(name: str, result: dict[str, Any]) -> Path:
    """Write a result and a description of the machine into benchmarks/results."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": describe_machine(), **result}, indent=1) + "\n")
    return path


def write_into(page: Path, name: str, text: str) -> None:
    """Replace the text between the marks `<!-- name: … -->` and `<!-- end -->` of a page.

    Raises:
        ValueError: If the page has no such marks.
    """
    marks = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- end -->)", re.DOTALL)
    old = page.read_text()
    if not marks.search(old):
        raise ValueError(f"{page} has no marks <!-- {name}: … --> and <!-- end -->")
    page.write_text(marks.sub(lambda found: found[1] + text.rstrip() + "\n" + found[2], old))
