"""A suite's figures in the layout of the paper's tables, with the paper's figures in the next column."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table as Grid

from eadp.evaluate import files, paper
from eadp.evaluate.paper.layout import HEADS, PRINTED
from eadp.evaluate.setting import Setting
from eadp.evaluate.suites.runner import Ran
from eadp.evaluate.suites.suite import Benchmark

NOTHING = "–"
TOKENS = "patches: visual tokens of a sample that stay; sent: what the language model gets of them, newlines included."


def rows(ran: Ran, beside: paper.Table | None) -> tuple[list[str], list[list[str]]]:
    """Head, and a line per setting: tokens kept and sent, method, every benchmark, ours and the paper's, average."""
    benchmarks = ran.plan.benchmarks
    shared = _averaged(benchmarks, beside)
    names = [name for each in benchmarks for name in (HEADS.get(each.name, each.name), "paper")]
    head = ["patches", "sent", "method", *names]
    head += [f"Avg. of {len(shared)}", "paper"] if shared else []
    lines = []
    for setting in ran.plan.settings:
        row = _row(setting, beside)
        line = [_mean(ran, setting, "tokens"), _mean(ran, setting, "sent"), _printed(setting)]
        for benchmark in benchmarks:
            printed = row.printed.get(benchmark.name, "") if row else ""
            line += [_figure(ran.value(setting, benchmark), printed), printed or NOTHING]
        if beside is not None and shared:
            ours = {each.name: ran.value(setting, each) for each in shared}
            line += [
                _average(beside, ours),
                _average(beside, {name: row.figures.get(name) for name in ours} if row else {}),
            ]
        lines.append(line)
    return head, lines


def as_grid(ran: Ran, beside: paper.Table | None) -> Grid:
    head, lines = rows(ran, beside)
    said = "\n".join(notes(ran))
    grid = Grid(title=_title(ran), title_justify="left", caption=said, caption_justify="left", box=box.SIMPLE_HEAD)
    grid.padding = (0, 1, 0, 0)
    for column in head:
        style = "dim" if column == "paper" else None
        grid.add_column(column, no_wrap=True, style=style, justify="left" if column == "method" else "right")
    settings = ran.plan.settings
    for setting, line, after in zip(settings, lines, [*settings[1:], None], strict=True):
        grid.add_row(*line, end_section=after is None or after.keep != setting.keep)
    return grid


def as_markdown(ran: Ran, beside: paper.Table | None) -> str:
    head, lines = rows(ran, beside)
    body = "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *lines])
    said = "\n".join(f"- {note}" for note in notes(ran))
    return f"{_title(ran)}\n\n{body}\n\n{said}\n"


def notes(ran: Ran) -> list[str]:
    """What to know about the table's rows."""
    told = [TOKENS]
    if given := ran.plan.given:
        told.append(f"The model is given {_pairs(given)}.")
    for name, setting in {_printed(setting): setting for setting in ran.plan.settings}.items():
        scripted = {each.name: each.scripted(setting) for each in ran.plan.benchmarks}
        where = [f"{_pairs(changed)} on {benchmark}" for benchmark, changed in scripted.items() if changed]
        if where:
            told.append(f"{name} has {' and '.join(where)}, as its authors' scripts set it there.")
    return told


def as_json(ran: Ran, beside: paper.Table | None) -> dict[str, Any]:
    return {
        **ran.plan.identity(),
        "paper": None if beside is None else beside.model,
        "cells": [{**record, "paper": _paper_figure(record, beside)} for record in ran.found.values()],
        "notes": notes(ran),
        "failures": ran.failures,
    }


def write(ran: Ran, beside: paper.Table | None) -> list[Path]:
    results, table = ran.plan.out / "results.json", ran.plan.out / "table.md"
    files.replace(results, json.dumps(as_json(ran, beside), indent=1) + "\n")
    files.replace(table, as_markdown(ran, beside))
    return [results, table]


def _title(ran: Ran) -> str:
    part = "" if ran.plan.samples is None else f", the first {ran.plan.samples} of each task"
    return f"{ran.plan.suite.name}: {ran.plan.model}{part}"


def _row(setting: Setting, beside: paper.Table | None) -> paper.Row | None:
    """The paper's row of the same method and budget, whatever the options."""
    if beside is None:
        return None
    keep = setting.keep
    count = beside.tokens if keep is None else round(keep * beside.tokens) if isinstance(keep, float) else keep
    return beside.of(setting.method, count)


def _paper_figure(record: dict[str, Any], beside: paper.Table | None) -> float | None:
    row = _row(Setting(record["method"], record["keep"], record["options"]), beside)
    return None if row is None else row.figures.get(record["benchmark"]["name"])


def _averaged(benchmarks: Sequence[Benchmark], beside: paper.Table | None) -> list[Benchmark]:
    return [each for each in benchmarks if beside is not None and each.name in beside.averaged]


def _average(beside: paper.Table, figures: dict[str, float | None]) -> str:
    """As the paper forms it, over these benchmarks alone."""
    known = [value / beside.divisors.get(name, 1) for name, value in figures.items() if value is not None]
    return f"{sum(known) / len(known):.1f}" if known and len(known) == len(figures) else NOTHING


def _mean(ran: Ran, setting: Setting, what: str) -> str:
    """Of a sample: the mean over the samples of all benchmarks."""
    found = [ran.found.get(f"{setting.key}/{each.name}") for each in ran.plan.benchmarks]
    answers = sum(each["answers"] for each in found if each)
    return f"{sum(each[what] * each['answers'] for each in found if each) / answers:,.0f}" if answers else NOTHING


def _printed(setting: Setting) -> str:
    """The method as the paper writes it, with its preset and options."""
    return str(Setting(PRINTED.get(setting.method, setting.method), options=setting.options))


def _pairs(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in given.items())


def _figure(value: float | None, printed: str) -> str:
    """With as many decimals as the paper has."""
    if value is None:
        return NOTHING
    return f"{value:.{len(printed.partition('.')[2]) if printed else 1}f}"
