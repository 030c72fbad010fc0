"""The paper's tables in the paper's layout: blocks of one budget or one setting, with a row per method."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich import box
from rich.table import Table

from eadp.paper.tables import ALL_TOKENS, AVERAGE, PaperRow, PaperTable
from eadp.utils.tables import NOTHING, format_markdown

METHOD_TITLES = {
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
SHARED_CELLS = {" ×": "{0} (×{1})", " ±": "{0} ± {1}", "-val": "{0}/{1}*", "/20": "{0}"}
"""Endings of columns that the paper prints in the cell of the column without the ending, and the format of both."""
SECOND_ALONE = {"-val": "{1}*", "/20": "{1}"}
"""The format of such a cell if the column without the ending is empty."""
COLUMN_TITLES = {
    "ScienceQA-IMG": "SQA",
    "MMBench": "MMB",
    "MMBench-CN": "MMB-CN",
    "HallusionBench": "HallBench",
    "LongVideoBench": "LongVideo",
    AVERAGE: "Avg.",
}
"""The columns with the short titles that the paper uses."""
TRANSPOSED_KINDS = ("subtasks", "times")
"""The kinds of table that are too wide for a terminal, so that their columns are printed as rows."""


def as_table(table: PaperTable) -> Table:
    """Build the table for the terminal."""
    columns = _printed_columns(table)
    title = f"{table.caption} [dim]\\[{table.label}][/dim]"
    notes = [*_describe_units(table, columns), *_describe_average(table), *table.remarks]
    printed = Table(title=title, caption="\n".join(notes), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    printed.title_justify = printed.caption_justify = "left"
    if table.kind in TRANSPOSED_KINDS:
        return _fill_transposed(table, columns, printed)
    printed.add_column("tokens", no_wrap=True)
    printed.add_column("setting" if table.kind == "ablation" else "method", no_wrap=True)
    for column in columns:
        printed.add_column(COLUMN_TITLES.get(column, column), justify="right", no_wrap=True)
    for _, block in groupby(table.rows, key=lambda row: _block_key(table, row)):
        rows = list(block)
        for row in rows:
            style = "bold" if row.method == "eadp" and table.kind == "accuracy" else None
            heading = row.heading if row is rows[0] or table.kind == "ablation" else ""
            cells = (format_cell(row, column) for column in columns)
            printed.add_row(heading, row_title(table, row), *cells, style=style)
        printed.add_section()
    return printed


def as_markdown(table: PaperTable) -> str:
    """Format the table as Markdown."""
    columns = _printed_columns(table)
    rows = [
        [row.heading, row_title(table, row), *(format_cell(row, column) for column in columns)] for row in table.rows
    ]
    return format_markdown(["tokens", "setting" if table.kind == "ablation" else "method", *columns], rows)


def row_title(table: PaperTable, row: PaperRow) -> str:
    """Return the title of a row: its method, or the setting of an ablation."""
    if row.setting:
        name, value = row.setting.split("=")
        return f"{SYMBOLS.get(name, name)} = {value}"
    return table.model if row.method == ALL_TOKENS else METHOD_TITLES[row.method]


def format_cell(row: PaperRow, column: str) -> str:
    """Format a cell as the paper prints it, together with the column that shares it."""
    first = row.printed.get(column, "")
    for ending, both in SHARED_CELLS.items():
        if second := row.printed.get(column + ending):
            return both.format(first, second) if first else SECOND_ALONE[ending].format(first, second)
    return first or NOTHING


def _printed_columns(table: PaperTable) -> list[str]:
    """Return the columns that have a cell of their own."""
    return [
        column
        for column in table.columns
        if not any(column.endswith(each) and column.removesuffix(each) in table.columns for each in SHARED_CELLS)
    ]


def _block_key(table: PaperTable, row: PaperRow) -> str:
    """Return what the rows between two lines share: the setting that is tried, or the budget."""
    one_budget = len({row.keep for row in table.rows}) == 1
    return row.setting.split("=")[0] if one_budget else row.setting or row.heading


def _fill_transposed(table: PaperTable, columns: list[str], printed: Table) -> Table:
    printed.add_column("", no_wrap=True)
    for _, block in groupby(table.rows, key=lambda row: row.heading):
        for index, row in enumerate(block):
            title = "all" if row.method == ALL_TOKENS else row_title(table, row)
            printed.add_column("\n".join(["" if index else row.heading, title]), justify="right", no_wrap=True)
    for column in columns:
        printed.add_row(column, *(format_cell(row, column) for row in table.rows))
    return printed


def _describe_units(table: PaperTable, columns: list[str]) -> Iterator[str]:
    units: dict[str, list[str]] = {}
    for column in columns:
        units.setdefault(table.unit(column), []).append(column)
    *_, common = sorted(units, key=lambda unit: len(units[unit]))
    others = [f"{', '.join(columns)} in {unit}" for unit, columns in units.items() if unit != common]
    yield f"Figures in {common}" + "".join(f"; {other}" for other in others) + "."


def _describe_average(table: PaperTable) -> Iterator[str]:
    if table.averaged:
        divided = " and ".join(f"{column} / {by:g}" for column, by in table.divisors.items())
        yield f"The average is over {len(table.averaged)} columns" + (f", with {divided}." if divided else ".")
