"""The paper's tables: tables.json describes each table, figures/NAME.csv has its rows as printed.

A row has `keep` (the visual tokens per sample that stay), `method` (a name from `eadp methods`, or "all tokens"), where
needed `heading` (the paper's heading of the row) and `setting` (what an ablation changes), and then the figures. A
figure that is measured differently has its own column: "VizWiz" is the test set and "VizWiz-val" the validation set,
"prefill ×" is a speed-up, and "total ±" is a standard deviation.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any

from eadp.method_spec import ALL_TOKENS

AVERAGE = "average"
ROW_KEYS = ("heading", "keep", "method", "setting")
"""The columns of a CSV file that are not figures."""
PERCENT = "%"


@dataclass(frozen=True)
class PaperRow:
    """One row of a table.

    Attributes:
        heading: The paper's heading of the row.
        keep: The visual tokens that stay; None if the paper gives no such count, or the row summarizes several.
        method: The name of the method, or `ALL_TOKENS`.
        setting: What an ablation changes, such as "mu=0.8"; "" in other tables.
        printed: The cells as the paper prints them, by column.
    """

    heading: str
    keep: int | None
    method: str
    setting: str
    printed: dict[str, str]

    @cached_property
    def figures(self) -> dict[str, float]:
        """The cells as numbers, by column."""
        return {column: float(cell) for column, cell in self.printed.items()}


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper.

    Attributes:
        label: The label of the table in the paper's source.
        kind: accuracy, subtasks, efficiency, times or ablation.
        model: The name of the model.
        tokens: The visual tokens per sample before pruning.
        caption: The caption.
        columns: The names of the columns with figures.
        rows: The rows.
        units: The unit of each column that is not in percent; "*" for all columns.
        averaged: The columns over which the paper averages; empty if it prints no average.
        divisors: By what a column is divided before it is averaged.
        checkpoints: The names of the model's checkpoints.
        remarks: Remarks about the table.
    """

    label: str
    kind: str
    model: str
    tokens: int
    caption: str
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    units: Mapping[str, str]
    averaged: tuple[str, ...]
    divisors: Mapping[str, float]
    checkpoints: tuple[str, ...]
    remarks: tuple[str, ...]

    def unit(self, column: str) -> str:
        """Return the unit of a column."""
        return self.units.get(column, self.units.get("*", PERCENT))

    def average(self, figures: Mapping[str, float]) -> float:
        """Compute the average of a row as the paper does.

        Args:
            figures: The figures by column.

        Raises:
            ValueError: If the table has no average, or a column is missing.
        """
        if not self.averaged:
            raise ValueError(f"the paper prints no average in {self.label}")
        missing = [column for column in self.averaged if column not in figures]
        if missing:
            raise ValueError(f"the average of {self.label} is over {len(self.averaged)} columns; missing: {missing}")
        return sum(figures[column] / self.divisors.get(column, 1) for column in self.averaged) / len(self.averaged)

    def find_row(self, method: str, keep: int | None = None) -> PaperRow | None:
        """Return the first row of a method at a budget, or None if the paper has no such row."""
        return next((row for row in self.rows if (row.method, row.keep) == (method, keep)), None)


def tables(kind: str | None = None) -> list[PaperTable]:
    """Return the tables in the order of the paper.

    Args:
        kind: Only tables of this kind: accuracy, subtasks, efficiency, times or ablation.
    """
    return [each for each in _read_tables() if kind in (None, each.kind)]


def table(label: str) -> PaperTable:
    """Return the table with a label of the paper's source, such as "tab:llava-1.5"; "tab:" may be left out.

    Raises:
        ValueError: If the paper has no such table.
    """
    for each in _read_tables():
        if _strip_prefix(label) == _strip_prefix(each.label):
            return each
    known = ", ".join(_strip_prefix(each.label) for each in _read_tables())
    raise ValueError(f"the paper has no table {label!r}; its tables are: {known}")


def models() -> dict[str, str]:
    """Return the models of the accuracy tables, by their names and by their checkpoints' names in lower case."""
    names = {each.model.lower(): each.model for each in tables("accuracy")}
    return names | {name.lower(): each.model for each in tables("accuracy") for name in each.checkpoints}


def figures(model: str, keep: int | float | None = None, method: str = ALL_TOKENS) -> dict[str, float]:
    """Return the accuracies that the paper reports for a model.

    Args:
        model: A key of `models()`, in any case.
        keep: The budget as a count or as a share; None for all tokens.
        method: The name of the method.

    Returns:
        The figures by benchmark, with the paper's "average"; {} if the paper has none.
    """
    name = models().get(model.lower())
    for each in tables("accuracy"):
        if each.model == name:
            count = each.tokens if keep is None else round(keep * each.tokens) if isinstance(keep, float) else keep
            row = each.find_row(method, count)
            return dict(row.figures) if row else {}
    return {}


@lru_cache(maxsize=1)
def _read_tables() -> tuple[PaperTable, ...]:
    descriptions = json.loads((files(__package__) / "tables.json").read_text("utf-8"))
    return tuple(_build_table(**description) for description in descriptions)


def _build_table(file: str, average: Mapping[str, Any] | None = None, **description: Any) -> PaperTable:
    text = (files(__package__) / "figures" / f"{file}.csv").read_text("utf-8")
    lines = csv.DictReader(text.splitlines())
    average = average or {}
    return PaperTable(
        columns=tuple(column for column in lines.fieldnames or () if column not in ROW_KEYS),
        rows=tuple(_build_row(cells) for cells in lines),
        averaged=tuple(average.get("over", ())),
        divisors=average.get("divide", {}),
        units=description.pop("units", {}),
        checkpoints=tuple(description.pop("checkpoints", ())),
        remarks=tuple(description.pop("remarks", ())),
        **description,
    )


def _build_row(cells: Mapping[str, str]) -> PaperRow:
    keep = int(cells["keep"]) if cells["keep"] else None
    printed = {column: cell for column, cell in cells.items() if cell and column not in ROW_KEYS}
    return PaperRow(cells.get("heading") or str(keep), keep, cells["method"], cells.get("setting") or "", printed)


def _strip_prefix(label: str) -> str:
    return label.removeprefix("tab:").strip()
