"""A suite's figures in the layout of the paper's tables, with the paper's figures in the next column."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from eadp import paper
from eadp.evaluate.suites.runner import SuiteResult
from eadp.evaluate.suites.suite import Benchmark
from eadp.method_spec import MethodSpec
from eadp.paper.layout import HEADS, PRINTED
from eadp.utils.files import replace_file
from eadp.utils.tables import NOTHING, format_markdown

TOKENS = "patches: visual tokens of a sample that stay; sent: what the language model gets of them, newlines included."


def rows(ran: SuiteResult, beside: paper.PaperTable | None) -> tuple[list[str], list[list[str]]]:
    """Head, and a line per setting: tokens kept and sent, method, every benchmark, ours and the paper's, average."""
    benchmarks = ran.plan.benchmarks
    shared = _averaged(benchmarks, beside)
    names = [name for each in benchmarks for name in (HEADS.get(each.name, each.name), "paper")]
    head = ["patches", "sent", "method", *names]
    head += [f"Avg. of {len(shared)}", "paper"] if shared else []
    lines = []
    for spec in ran.plan.specs:
        row = _row(spec, beside)
        line = [_mean(ran, spec, "tokens"), _mean(ran, spec, "sent"), _printed(spec)]
        for benchmark in benchmarks:
            printed = row.printed.get(benchmark.name, "") if row else ""
            line += [_figure(ran.value(spec, benchmark), printed), printed or NOTHING]
        if beside is not None and shared:
            ours = {each.name: ran.value(spec, each) for each in shared}
            line += [
                _average(beside, ours),
                _average(beside, {name: row.figures.get(name) for name in ours} if row else {}),
            ]
        lines.append(line)
    return head, lines


def as_table(ran: SuiteResult, beside: paper.PaperTable | None) -> Table:
    head, lines = rows(ran, beside)
    said = "\n".join(notes(ran))
    grid = Table(title=_title(ran), title_justify="left", caption=said, caption_justify="left", box=box.SIMPLE_HEAD)
    grid.padding = (0, 1, 0, 0)
    for column in head:
        style = "dim" if column == "paper" else None
        grid.add_column(column, no_wrap=True, style=style, justify="left" if column == "method" else "right")
    specs = ran.plan.specs
    for spec, line, after in zip(specs, lines, [*specs[1:], None], strict=True):
        grid.add_row(*line, end_section=after is None or after.keep != spec.keep)
    return grid


def as_markdown(ran: SuiteResult, beside: paper.PaperTable | None) -> str:
    head, lines = rows(ran, beside)
    said = "\n".join(f"- {note}" for note in notes(ran))
    return f"{_title(ran)}\n\n{format_markdown(head, lines)}\n\n{said}\n"


def notes(ran: SuiteResult) -> list[str]:
    """What to know about the table's rows."""
    told = [TOKENS]
    if given := ran.plan.given:
        told.append(f"The model is given {_pairs(given)}.")
    for name, spec in {_printed(spec): spec for spec in ran.plan.specs}.items():
        scripted = {each.name: each.scripted(spec) for each in ran.plan.benchmarks}
        where = [f"{_pairs(changed)} on {benchmark}" for benchmark, changed in scripted.items() if changed]
        if where:
            told.append(f"{name} has {' and '.join(where)}, as its authors' scripts set it there.")
    return told


def as_json(ran: SuiteResult, beside: paper.PaperTable | None) -> dict[str, Any]:
    return {
        **ran.plan.identity(),
        "paper": None if beside is None else beside.model,
        "cells": [{**record, "paper": _paper_figure(record, beside)} for record in ran.found.values()],
        "notes": notes(ran),
        "failures": ran.failures,
    }


def write(ran: SuiteResult, beside: paper.PaperTable | None) -> list[Path]:
    results, table = ran.plan.out / "results.json", ran.plan.out / "table.md"
    replace_file(results, json.dumps(as_json(ran, beside), indent=1) + "\n")
    replace_file(table, as_markdown(ran, beside))
    return [results, table]


def _title(ran: SuiteResult) -> str:
    part = "" if ran.plan.samples is None else f", the first {ran.plan.samples} of each task"
    return f"{ran.plan.suite.name}: {ran.plan.model}{part}"


def _row(spec: MethodSpec, beside: paper.PaperTable | None) -> paper.PaperRow | None:
    """The paper's row of the same method and budget, whatever the options."""
    if beside is None:
        return None
    keep = spec.keep
    count = beside.tokens if keep is None else round(keep * beside.tokens) if isinstance(keep, float) else keep
    return beside.of(spec.method, count)


def _paper_figure(record: dict[str, Any], beside: paper.PaperTable | None) -> float | None:
    row = _row(MethodSpec(record["method"], record["keep"], record["options"]), beside)
    return None if row is None else row.figures.get(record["benchmark"]["name"])


def _averaged(benchmarks: Sequence[Benchmark], beside: paper.PaperTable | None) -> list[Benchmark]:
    return [each for each in benchmarks if beside is not None and each.name in beside.averaged]


def _average(beside: paper.PaperTable, figures: dict[str, float | None]) -> str:
    """As the paper forms it, over these benchmarks alone."""
    known = [value / beside.divisors.get(name, 1) for name, value in figures.items() if value is not None]
    return f"{sum(known) / len(known):.1f}" if known and len(known) == len(figures) else NOTHING


def _mean(ran: SuiteResult, spec: MethodSpec, what: str) -> str:
    """Of a sample: the mean over the samples of all benchmarks."""
    found = [ran.found.get(f"{spec.key}/{each.name}") for each in ran.plan.benchmarks]
    answers = sum(each["answers"] for each in found if each)
    return f"{sum(each[what] * each['answers'] for each in found if each) / answers:,.0f}" if answers else NOTHING


def _printed(spec: MethodSpec) -> str:
    """The method as the paper writes it, with its preset and options."""
    return str(MethodSpec(PRINTED.get(spec.method, spec.method), options=spec.options))


def _pairs(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in given.items())


def _figure(value: float | None, printed: str) -> str:
    """With as many decimals as the paper has."""
    if value is None:
        return NOTHING
    return f"{value:.{len(printed.partition('.')[2]) if printed else 1}f}"
