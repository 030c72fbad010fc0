"""A measurement as tables and files. Ratios to the unpruned model come first."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from eadp.architectures.memory import format_bytes
from eadp.measure.bench import TIMES, BenchReport, BenchResult
from eadp.measure.machine import describe_machine
from eadp.measure.stopwatch import PARTS
from eadp.utils.statistics import median_interval
from eadp.utils.tables import NOTHING, format_markdown

LABELS = {"prefill": "prefill", "first_token": "first token", "decode": "per token", "latency": "whole answer"}
"""Column titles of the times."""

TableText = tuple[list[str], list[list[str]]]
"""The head of a table and its lines."""


def time_ratios(report: BenchReport) -> TableText:
    """Format the times as ratios to the unpruned model, with 95 % intervals."""
    lines = []
    for result in report.results:
        ratios = [report.ratio(result, name) for name in TIMES]
        cells = [NOTHING if ratio is None else "1" if result is report.baseline else f"{ratio:.2f}" for ratio in ratios]
        counts = [f"{median(result.values(name)):.0f}" for name in ("after", "sent")]
        lines.append([str(result.row), *counts, *cells])
    return ["row", "patches", "sent", *(LABELS[name] for name in TIMES)], lines


def count_ratios(report: BenchReport) -> TableText:
    """Format multiply-adds and memory as ratios to the unpruned model, and how much of the speed-up was measured."""
    head = ["row", "layer mean", "multiply-adds", "speed-up reached", "pruner's share", "KV cache", "peak memory"]
    lines = []
    for result in report.results:
        cache = median(result.values("cache_bytes")) / median(report.baseline.values("cache_bytes"))
        memory = result.operations.peak_bytes / report.baseline.operations.peak_bytes
        ratios = [f"{ratio:.2f}" for ratio in (report.expected_ratio(result), cache, memory)]
        shares = [f"{report.realized_speedup(result):.0%}", f"{median(result.values('pruner_share')):.1%}"]
        cells = ["1", NOTHING, NOTHING, "1", "1"] if result is report.baseline else [ratios[0], *shares, *ratios[1:]]
        lines.append([str(result.row), f"{median(result.values('layer_mean')):.0f}", *cells])
    return head, lines


def absolute_values(report: BenchReport) -> TableText:
    """Format milliseconds with 95 % intervals, bytes and multiply-adds."""
    head = ["row", *(f"{LABELS[name]}, ms" for name in TIMES), "KV cache", "peak memory", "multiply-adds"]
    lines = []
    for result in report.results:
        times = [f"{median_interval(values):.1f}" if (values := result.values(name)) else NOTHING for name in TIMES]
        sizes = [format_bytes(median(result.values("cache_bytes"))), format_bytes(result.operations.peak_bytes)]
        lines.append([str(result.row), *times, *sizes, f"{result.operations.multiply_adds / 1e9:,.1f} G"])
    return head, lines


def times_by_part(report: BenchReport) -> TableText:
    """Format the median milliseconds of each part of the prefill."""
    lines = [[str(result.row), *(f"{result.part(name).median:.2f}" for name in PARTS)] for result in report.results]
    return ["row", *PARTS], lines


TABLES = {
    "time as a ratio to the unpruned model's, median (95 %)": time_ratios,
    "multiply-adds and memory, as ratios": count_ratios,
    "medians (95 %)": absolute_values,
    "prefill by part, ms": times_by_part,
}


def format_caption(report: BenchReport) -> str:
    """Format the note below the tables: how was measured, and what the columns mean."""
    unit = "CPU time of the process" if report.clock == "cpu" else "wall time"
    return (
        f"{len(report.baseline.runs)} rounds, {unit}, {report.new_tokens} new tokens. Every row is the whole call of "
        "model.generate on prepared inputs, vision tower included. Patches: visual tokens left after the last cut; "
        "sent: these and the newline tokens. Speed-up reached: measured speed-up divided by the one that the "
        "multiply-adds promise. Peak memory: tensors alive at the same time in the prefill, without the weights "
        f"({format_bytes(report.weight_bytes)}), compiled kernels and the allocator's reserve."
    )


def as_tables(report: BenchReport) -> list[Table]:
    """Build the tables for a terminal."""
    tables = []
    for title, make in TABLES.items():
        head, lines = make(report)
        tables.append(Table(*head, title=f"{report.model}: {title}"))
        for line in lines:
            tables[-1].add_row(*line)
        tables[-1].columns[0].no_wrap = True
    tables[-1].caption = format_caption(report)
    return tables


def as_markdown(report: BenchReport) -> str:
    """Format the report as a Markdown page."""
    parts = [f"# {report.model}", format_caption(report)]
    for title, make in TABLES.items():
        head, lines = make(report)
        parts += [f"## {title[0].upper()}{title[1:]}", format_markdown(head, lines)]
    parts += [f"**Warning:** {warning}." for warning in report.warnings]
    return "\n\n".join(parts) + "\n"


def as_json(report: BenchReport) -> dict[str, Any]:
    """Return the report with all its runs as a dict that JSON can hold."""
    return {
        "benchmark": "time",
        "machine": describe_machine(),
        "model": report.model,
        "clock": report.clock,
        "rounds": len(report.baseline.runs),
        "new_tokens": report.new_tokens,
        "weight_bytes": report.weight_bytes,
        "warnings": report.warnings,
        "rows": [_result_as_json(report, result) for result in report.results],
    }


def _result_as_json(report: BenchReport, result: BenchResult) -> dict[str, Any]:
    ratios = {name: report.ratio(result, name) for name in TIMES}
    return {
        "method": result.row.name,
        "keep": result.row.keep,
        "ratio": {name: None if ratio is None else asdict(ratio) for name, ratio in ratios.items()},
        "ms": {name: asdict(median_interval(result.values(name))) for name in TIMES if result.values(name)},
        "parts_ms": {name: asdict(result.part(name)) for name in PARTS},
        "pruner_share": asdict(median_interval(result.values("pruner_share"))),
        "multiply_adds": result.operations.multiply_adds,
        "multiply_adds_ratio": report.expected_ratio(result),
        "speed_up_reached": report.realized_speedup(result),
        "peak_bytes": result.operations.peak_bytes,
        "cache_bytes": median(result.values("cache_bytes")),
        "visual_tokens": median(result.values("visual")),
        "tokens_after": median(result.values("after")),
        "tokens_sent": median(result.values("sent")),
        "tokens_layer_mean": median(result.values("layer_mean")),
        "runs": [asdict(run) for run in result.runs],
    }


def write_files(report: BenchReport, folder: Path, accuracy: Path | None = None) -> list[Path]:
    """Write bench.json, bench.csv (one line per run), bench.md and, if matplotlib is installed, bench.png.

    Args:
        report: The report.
        folder: The folder to write into. It is created if needed.
        accuracy: A results.json of `eadp eval`, for the plot.

    Returns:
        The files that were written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"bench.{kind}" for kind in ("json", "csv", "md")]
    paths[0].write_text(json.dumps(as_json(report), indent=1) + "\n")
    with paths[1].open("w", newline="") as file:
        table = csv.writer(file)
        names = ("visual", "after", "sent", "layer_mean", "cache_bytes", *TIMES)
        table.writerow(["method", "keep", "round", *names, *PARTS])
        for result in report.results:
            for number, run in enumerate(result.runs):
                figures = [getattr(run, name) for name in names] + [run.parts[name] for name in PARTS]
                table.writerow([result.row.name, result.row.keep, number, *figures])
    paths[2].write_text(as_markdown(report))
    if find_spec("matplotlib") is None:
        return paths
    from eadp.measure.bench_plot import draw_plot

    return [*paths, draw_plot(report, folder / "bench.png", accuracy)]
