"""The results of a suite in the layout of the paper's tables, with the paper's results in the next column."""

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
from eadp.methods import Downsample
from eadp.paper.layout import COLUMN_TITLES, METHOD_TITLES
from eadp.utils.files import replace_file
from eadp.utils.tables import NOTHING, build_table, format_markdown

TOKENS_NOTE = (
    "patches: visual tokens of a sample that stay; sent: what the language model gets of them, newlines included."
)

LOYALTY_NOTE = "loyalty: the share of all answers that equal those of the unpruned model, in percent."
HARD_TITLE = (
    "Hard samples only, those that `downsample` does not answer right with the same budget: mean score, and how many"
)


def build_rows(result: SuiteResult, paper_table: paper.PaperTable | None) -> tuple[list[str], list[list[str]]]:
    """Build the header and one row per setting.

    A row has the tokens kept and sent, the method, our value and the paper's for every benchmark, the averages, and the
    loyalty over all benchmarks.
    """
    benchmarks = result.plan.benchmarks
    averaged = _select_averaged(benchmarks, paper_table)
    names = [name for each in benchmarks for name in (COLUMN_TITLES.get(each.name, each.name), "paper")]
    header = ["patches", "sent", "method", *names]
    header += [f"Avg. of {len(averaged)}", "paper"] if averaged else []
    header.append("loyalty")
    rows = []
    for spec in result.plan.specs:
        paper_row = _find_paper_row(spec, paper_table)
        row = [_mean_tokens(result, spec, "tokens"), _mean_tokens(result, spec, "sent"), _format_spec(spec)]
        for benchmark in benchmarks:
            printed = paper_row.printed.get(benchmark.name, "") if paper_row else ""
            row += [_format_value(result.value(spec, benchmark), printed), printed or NOTHING]
        if paper_table is not None and averaged:
            ours = {each.name: result.value(spec, each) for each in averaged}
            theirs = {name: paper_row.figures.get(name) for name in ours} if paper_row else {}
            row += [_format_average(paper_table, ours), _format_average(paper_table, theirs)]
        loyal = result.loyalty(spec, benchmarks)
        rows.append([*row, NOTHING if loyal is None else f"{100 * loyal:.1f}"])
    return header, rows


def build_hard_rows(result: SuiteResult) -> tuple[list[str], list[list[str]]]:
    """Build the header and one row per pruned setting: the mean score of the hard samples, and how many there are.

    Hard are the samples that `downsample` with the same budget does not answer right.
    """
    downsampled = {spec.keep: spec for spec in result.plan.specs if spec.method == Downsample.name}
    rows = []
    for spec in (each for each in result.plan.specs if each.keep in downsampled):
        row = [str(spec)]
        for benchmark in result.plan.benchmarks:
            found = result.hard_score(spec, benchmark, downsampled[spec.keep])
            row.append(NOTHING if found is None else f"{found[0]:.1f} of {found[1]:,}")
        rows.append(row)
    return ["method", *(COLUMN_TITLES.get(each.name, each.name) for each in result.plan.benchmarks)], rows


def as_hard_table(result: SuiteResult) -> Table:
    """Build the table of the hard samples for the terminal."""
    return build_table(*build_hard_rows(result), left=["method"], box=box.SIMPLE_HEAD, title=HARD_TITLE)


def as_table(result: SuiteResult, paper_table: paper.PaperTable | None) -> Table:
    """Build the table for the terminal, with the notes below it."""
    header, rows = build_rows(result, paper_table)
    table = Table(
        title=_build_title(result),
        title_justify="left",
        caption="\n".join(build_notes(result)),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.padding = (0, 1, 0, 0)
    for column in header:
        style = "dim" if column == "paper" else None
        table.add_column(column, no_wrap=True, style=style, justify="left" if column == "method" else "right")
    specs = result.plan.specs
    for spec, row, following in zip(specs, rows, [*specs[1:], None], strict=True):
        table.add_row(*row, end_section=following is None or following.keep != spec.keep)
    return table


def as_markdown(result: SuiteResult, paper_table: paper.PaperTable | None, hard: bool = False) -> str:
    """Format the content of table.md: title, table and notes; and the table of the hard samples, if asked for."""
    header, rows = build_rows(result, paper_table)
    notes = "\n".join(f"- {note}" for note in build_notes(result))
    more = f"\n{HARD_TITLE}\n\n{format_markdown(*build_hard_rows(result))}\n" if hard else ""
    return f"{_build_title(result)}\n\n{format_markdown(header, rows)}\n\n{notes}\n{more}"


def build_notes(result: SuiteResult) -> list[str]:
    """Return the notes below the table: its columns, the model's arguments, and what the authors' scripts set."""
    notes = [TOKENS_NOTE, LOYALTY_NOTE]
    if arguments := result.plan.model_arguments:
        notes.append(f"The model is given {_format_settings(arguments)}.")
    for name, spec in {_format_spec(spec): spec for spec in result.plan.specs}.items():
        by_benchmark = {each.name: each.script_settings(spec) for each in result.plan.benchmarks}
        changes = [f"{_format_settings(changed)} on {each}" for each, changed in by_benchmark.items() if changed]
        if changes:
            notes.append(f"{name} has {' and '.join(changes)}, as its authors' scripts set it there.")
    return notes


def as_json(result: SuiteResult, paper_table: paper.PaperTable | None) -> dict[str, Any]:
    """Return the content of results.json."""
    return {
        **result.plan.journal_settings(),
        "paper": None if paper_table is None else paper_table.model,
        "cells": [{**record, "paper": _find_paper_figure(record, paper_table)} for record in result.records.values()],
        "notes": build_notes(result),
        "failures": result.failures,
    }


def write(result: SuiteResult, paper_table: paper.PaperTable | None, hard: bool = False) -> list[Path]:
    """Write results.json and table.md to the folder of the run, and return their paths."""
    results, table = result.plan.out / "results.json", result.plan.out / "table.md"
    replace_file(results, json.dumps(as_json(result, paper_table), indent=1) + "\n")
    replace_file(table, as_markdown(result, paper_table, hard))
    return [results, table]


def _build_title(result: SuiteResult) -> str:
    part = "" if result.plan.samples is None else f", the first {result.plan.samples} of each task"
    return f"{result.plan.suite.name}: {result.plan.model}{part}"


def _find_paper_row(spec: MethodSpec, paper_table: paper.PaperTable | None) -> paper.PaperRow | None:
    """Find the paper's row for the method and budget of a spec; its options are ignored."""
    if paper_table is None:
        return None
    keep, total = spec.keep, paper_table.tokens
    count = total if keep is None else round(keep * total) if isinstance(keep, float) else keep
    return paper_table.find_row(spec.method, count)


def _find_paper_figure(record: dict[str, Any], paper_table: paper.PaperTable | None) -> float | None:
    row = _find_paper_row(MethodSpec(record["method"], record["keep"], record["options"]), paper_table)
    return None if row is None else row.figures.get(record["benchmark"]["name"])


def _select_averaged(benchmarks: Sequence[Benchmark], paper_table: paper.PaperTable | None) -> list[Benchmark]:
    return [each for each in benchmarks if paper_table is not None and each.name in paper_table.averaged]


def _format_average(paper_table: paper.PaperTable, figures: dict[str, float | None]) -> str:
    """Format the average over these benchmarks, computed as in the paper."""
    known = [value / paper_table.divisors.get(name, 1) for name, value in figures.items() if value is not None]
    return f"{sum(known) / len(known):.1f}" if known and len(known) == len(figures) else NOTHING


def _mean_tokens(result: SuiteResult, spec: MethodSpec, field: str) -> str:
    """Format the mean token count per sample over the samples of all benchmarks."""
    records = [result.records.get(f"{spec.key}/{each.name}") for each in result.plan.benchmarks]
    answers = sum(each["answers"] for each in records if each)
    return f"{sum(each[field] * each['answers'] for each in records if each) / answers:,.0f}" if answers else NOTHING


def _format_spec(spec: MethodSpec) -> str:
    """Format a method as the paper writes it, with its preset and options."""
    return str(MethodSpec(METHOD_TITLES.get(spec.method, spec.method), options=spec.options))


def _format_settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _format_value(value: float | None, printed: str) -> str:
    """Format a value with as many decimals as the paper's."""
    if value is None:
        return NOTHING
    return f"{value:.{len(printed.partition('.')[2]) if printed else 1}f}"
