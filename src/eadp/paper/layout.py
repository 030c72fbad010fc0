"""The paper's tables as it lays them out: a head, blocks of one budget or one setting, a row a method."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich import box
from rich.table import Table

from eadp.paper.tables import ALL_TOKENS, AVERAGE, PaperRow, PaperTable
from eadp.utils.tables import NOTHING, format_markdown

PRINTED = {
    "fastv": "FastV",
    "pyramiddrop": "PDrop",
    "sparsevlm": "SparseVLM",
    "prumerge": "PruMerge+",
    "trim": "TRIM",
    "visionzip": "VisionZip",
    "dart": "DART",
    "divprune": "DivPrune",
    "cdpruner": "CDPruner",
    "hiprune": "HiPrune",
    "eadp": "EADP",
}
"""The methods as the paper writes them."""

SYMBOLS = {"mu": "μ", "beta": "β", "tau": "τ", "gamma": "γ"}
BESIDE = {" ×": "{0} (×{1})", " ±": "{0} ± {1}", "-val": "{0}/{1}*", "/20": "{0}"}
"""Columns that the paper prints in the cell of the one before: how its cell is written with both."""
ONLY_BESIDE = {"-val": "{1}*", "/20": "{1}"}
"""And how where the one before is empty."""
HEADS = {
    "ScienceQA-IMG": "SQA",
    "MMBench": "MMB",
    "MMBench-CN": "MMB-CN",
    "HallusionBench": "HallBench",
    "LongVideoBench": "LongVideo",
    AVERAGE: "Avg.",
}
"""Columns as the paper heads them, to fit a screen."""
ON_ITS_SIDE = ("subtasks", "times")
"""Kinds of table that are too wide for a screen."""


def as_table(table: PaperTable) -> Table:
    """For the screen."""
    head = [column for column in table.columns if not _is_beside(table, column)]
    title = f"{table.caption} [dim]\\[{table.label}][/dim]"
    said = [*_units(table, head), *_rule(table), *table.remarks]
    grid = Table(title=title, caption="\n".join(said), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    grid.title_justify = grid.caption_justify = "left"
    if table.kind in ON_ITS_SIDE:
        return _turned(table, head, grid)
    grid.add_column("tokens", no_wrap=True)
    grid.add_column("setting" if table.kind == "ablation" else "method", no_wrap=True)
    for column in head:
        grid.add_column(HEADS.get(column, column), justify="right", no_wrap=True)
    for _, block in groupby(table.rows, key=lambda row: _block(table, row)):
        rows = list(block)
        for row in rows:
            style = "bold" if row.method == "eadp" and table.kind == "accuracy" else None
            heading = row.heading if row is rows[0] or table.kind == "ablation" else ""
            grid.add_row(heading, named(table, row), *(cell(row, column) for column in head), style=style)
        grid.add_section()
    return grid


def as_markdown(table: PaperTable) -> str:
    """For a page."""
    head = [column for column in table.columns if not _is_beside(table, column)]
    rows = [[row.heading, named(table, row), *(cell(row, column) for column in head)] for row in table.rows]
    return format_markdown(["tokens", "setting" if table.kind == "ablation" else "method", *head], rows)


def named(table: PaperTable, row: PaperRow) -> str:
    """What a row is called: its method, or what an ablation sets."""
    if row.setting:
        name, value = row.setting.split("=")
        return f"{SYMBOLS.get(name, name)} = {value}"
    return table.model if row.method == ALL_TOKENS else PRINTED[row.method]


def cell(row: PaperRow, column: str) -> str:
    """A cell with what the paper prints in it besides."""
    alone = row.printed.get(column, "")
    for ending, both in BESIDE.items():
        if more := row.printed.get(column + ending):
            return both.format(alone, more) if alone else ONLY_BESIDE[ending].format(alone, more)
    return alone or NOTHING


def _is_beside(table: PaperTable, column: str) -> bool:
    return any(column.endswith(ending) and column.removesuffix(ending) in table.columns for ending in BESIDE)


def _block(table: PaperTable, row: PaperRow) -> str:
    """What the rows between two lines have in common: the setting that is tried, or the budget."""
    one_budget = len({row.keep for row in table.rows}) == 1
    return row.setting.split("=")[0] if one_budget else row.setting or row.heading


def _turned(table: PaperTable, head: list[str], grid: Table) -> Table:
    """Columns as rows."""
    grid.add_column("", no_wrap=True)
    for _, block in groupby(table.rows, key=lambda row: row.heading):
        for place, row in enumerate(block):
            name = "all" if row.method == ALL_TOKENS else named(table, row)
            grid.add_column("\n".join(["" if place else row.heading, name]), justify="right", no_wrap=True)
    for column in head:
        grid.add_row(column, *(cell(row, column) for row in table.rows))
    return grid


def _units(table: PaperTable, head: list[str]) -> Iterator[str]:
    units: dict[str, list[str]] = {}
    for column in head:
        units.setdefault(table.unit(column), []).append(column)
    *_, common = sorted(units, key=lambda unit: len(units[unit]))
    others = [f"{', '.join(columns)} in {unit}" for unit, columns in units.items() if unit != common]
    yield f"Figures in {common}" + "".join(f"; {other}" for other in others) + "."


def _rule(table: PaperTable) -> Iterator[str]:
    if table.averaged:
        divided = " and ".join(f"{column} / {by:g}" for column, by in table.divisors.items())
        yield f"The average is over {len(table.averaged)} columns" + (f", with {divided}." if divided else ".")
