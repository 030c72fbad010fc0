"""A measurement as tables and as files: ratios to the unpruned model first."""

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
from eadp.measure.bench import TIMES, BenchReport, Measured
from eadp.measure.machine import machine
from eadp.measure.stopwatch import PARTS
from eadp.utils.statistics import median_interval
from eadp.utils.tables import NOTHING, format_markdown

LABELS = {"prefill": "prefill", "first_token": "first token", "decode": "a token", "latency": "whole answer"}


def ratios(report: BenchReport) -> tuple[list[str], list[list[str]]]:
    """Head and lines: times as ratios to the unpruned model, with 95 % intervals."""
    lines = []
    for row in report.rows:
        times = [report.ratio(row, name) for name in TIMES]
        told = [NOTHING if time is None else "1" if row is report.base else f"{time:.2f}" for time in times]
        counts = [f"{median(row.values(name)):.0f}" for name in ("after", "sent")]
        lines.append([str(row.row), *counts, *told])
    return ["row", "patches", "sent", *(LABELS[name] for name in TIMES)], lines


def counts(report: BenchReport) -> tuple[list[str], list[list[str]]]:
    """Head and lines: what is counted, as ratios, and how much of it the time follows."""
    head = ["row", "layer mean", "multiply-adds", "speed-up reached", "pruner's share", "KV cache", "peak memory"]
    lines = []
    for row in report.rows:
        first = row is report.base
        cache = median(row.values("cache_bytes")) / median(report.base.values("cache_bytes"))
        memory = row.operations.peak_bytes / report.base.operations.peak_bytes
        told = [f"{ratio:.2f}" for ratio in (report.expected(row), cache, memory)]
        shares = [f"{report.reached(row):.0%}", f"{median(row.values('pruner_share')):.1%}"]
        line = ["1", NOTHING, NOTHING, "1", "1"] if first else [told[0], *shares, *told[1:]]
        lines.append([str(row.row), f"{median(row.values('layer_mean')):.0f}", *line])
    return head, lines


def absolute(report: BenchReport) -> tuple[list[str], list[list[str]]]:
    """Head and lines: milliseconds with 95 % intervals, and bytes."""
    head = ["row", *(f"{LABELS[name]}, ms" for name in TIMES), "KV cache", "peak memory", "multiply-adds"]
    lines = []
    for row in report.rows:
        times = [f"{median_interval(values):.1f}" if (values := row.values(name)) else NOTHING for name in TIMES]
        sizes = [format_bytes(median(row.values("cache_bytes"))), format_bytes(row.operations.peak_bytes)]
        lines.append([str(row.row), *times, *sizes, f"{row.operations.multiply_adds / 1e9:,.1f} G"])
    return head, lines


def by_part(report: BenchReport) -> tuple[list[str], list[list[str]]]:
    """Head and lines: medians of each part of the prefill in milliseconds."""
    lines = [[str(row.row), *(f"{row.part(name).median:.2f}" for name in PARTS)] for row in report.rows]
    return ["row", *PARTS], lines


TABLES = {
    "time as a ratio to the unpruned model's, median (95 %)": ratios,
    "multiply-adds and memory, as ratios": counts,
    "medians (95 %)": absolute,
    "prefill by part, ms": by_part,
}


def caption(report: BenchReport) -> str:
    unit = "CPU time of the process" if report.clock == "cpu" else "wall time"
    return (
        f"{len(report.base.runs)} rounds, {unit}, {report.new_tokens} new tokens. Every row: the whole of "
        "model.generate, vision tower included, on inputs that are ready. Patches: visual tokens left in the end; "
        "sent: these and newlines. Speed-up reached: of the one that the multiply-adds say. Peak memory: tensors "
        "alive at once in the prefill, beside the weights "
        f"({format_bytes(report.weight_bytes)}); compiled kernels and allocator not counted."
    )


def as_tables(report: BenchReport) -> list[Table]:
    tables = []
    for title, make in TABLES.items():
        head, lines = make(report)
        tables.append(Table(*head, title=f"{report.model}: {title}"))
        for line in lines:
            tables[-1].add_row(*line)
        tables[-1].columns[0].no_wrap = True
    tables[-1].caption = caption(report)
    return tables


def as_markdown(report: BenchReport) -> str:
    parts = [f"# {report.model}", caption(report)]
    for title, make in TABLES.items():
        head, lines = make(report)
        parts += [f"## {title[0].upper()}{title[1:]}", format_markdown(head, lines)]
    parts += [f"**Warning:** {warning}." for warning in report.warnings]
    return "\n\n".join(parts) + "\n"


def as_json(report: BenchReport) -> dict[str, Any]:
    return {
        "benchmark": "time",
        "machine": machine(),
        "model": report.model,
        "clock": report.clock,
        "rounds": len(report.base.runs),
        "new_tokens": report.new_tokens,
        "weight_bytes": report.weight_bytes,
        "warnings": report.warnings,
        "rows": [_row(report, row) for row in report.rows],
    }


def _row(report: BenchReport, row: Measured) -> dict[str, Any]:
    ratios = {name: report.ratio(row, name) for name in TIMES}
    return {
        "method": row.row.name,
        "keep": row.row.keep,
        "ratio": {name: None if ratio is None else asdict(ratio) for name, ratio in ratios.items()},
        "ms": {name: asdict(median_interval(row.values(name))) for name in TIMES if row.values(name)},
        "parts_ms": {name: asdict(row.part(name)) for name in PARTS},
        "pruner_share": asdict(median_interval(row.values("pruner_share"))),
        "multiply_adds": row.operations.multiply_adds,
        "multiply_adds_ratio": report.expected(row),
        "speed_up_reached": report.reached(row),
        "peak_bytes": row.operations.peak_bytes,
        "cache_bytes": median(row.values("cache_bytes")),
        "visual_tokens": median(row.values("visual")),
        "tokens_after": median(row.values("after")),
        "tokens_sent": median(row.values("sent")),
        "tokens_layer_mean": median(row.values("layer_mean")),
        "runs": [asdict(run) for run in row.runs],
    }


def write(report: BenchReport, folder: Path, accuracy: Path | None = None) -> list[Path]:
    """bench.json, bench.csv (one line a run), bench.md and, where matplotlib is there, bench.png.

    accuracy: a results.json of `eadp eval`, for the plot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"bench.{kind}" for kind in ("json", "csv", "md")]
    paths[0].write_text(json.dumps(as_json(report), indent=1) + "\n")
    with paths[1].open("w", newline="") as file:
        table = csv.writer(file)
        names = ("visual", "after", "sent", "layer_mean", "cache_bytes", *TIMES)
        table.writerow(["method", "keep", "round", *names, *PARTS])
        for row in report.rows:
            for number, run in enumerate(row.runs):
                figures = [getattr(run, name) for name in names] + [run.parts[name] for name in PARTS]
                table.writerow([row.row.name, row.row.keep, number, *figures])
    paths[2].write_text(as_markdown(report))
    if find_spec("matplotlib") is None:
        return paths
    from eadp.measure.bench_plot import draw

    return [*paths, draw(report, folder / "bench.png", accuracy)]
