"""Reads the tables: tables.json says what each is, figures/NAME.csv holds its rows as they are printed.

A row has `keep` (visual tokens of one sample that stay), `method` (a name of `eadp methods`, or "all tokens"), where
needed `heading` (how the paper heads it) and `setting` (what an ablation changes), then the figures. What is measured
otherwise is another column: "VizWiz" is of the test set, "VizWiz-val" of the validation set, "prefill ×" a speed-up,
"total ±" a standard deviation.
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
KEYS = ("heading", "keep", "method", "setting")
PERCENT = "%"


@dataclass(frozen=True)
class PaperRow:
    """One line of a table. keep: None where the paper gives no count that fits, or the row sums up several."""

    heading: str
    keep: int | None
    method: str
    setting: str
    printed: dict[str, str]
    """The cells as the paper prints them."""

    @cached_property
    def figures(self) -> dict[str, float]:
        return {column: float(cell) for column, cell in self.printed.items()}


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper. tokens: visual tokens of a sample before pruning."""

    label: str
    kind: str
    model: str
    tokens: int
    caption: str
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    units: Mapping[str, str]
    averaged: tuple[str, ...]
    """The columns that the paper's average is the mean of; none where it prints no average."""
    divisors: Mapping[str, float]
    """What a column is divided by before it is averaged."""
    checkpoints: tuple[str, ...]
    remarks: tuple[str, ...]

    def unit(self, column: str) -> str:
        return self.units.get(column, self.units.get("*", PERCENT))

    def average(self, figures: Mapping[str, float]) -> float:
        """The mean of a row's figures as the paper forms it."""
        if not self.averaged:
            raise ValueError(f"the paper prints no average in {self.label}")
        missing = [column for column in self.averaged if column not in figures]
        if missing:
            raise ValueError(f"the average of {self.label} is over {len(self.averaged)} columns; missing: {missing}")
        return sum(figures[column] / self.divisors.get(column, 1) for column in self.averaged) / len(self.averaged)

    def of(self, method: str, keep: int | None = None) -> PaperRow | None:
        """The row of a method at a budget, if the paper has it."""
        return next((row for row in self.rows if (row.method, row.keep) == (method, keep)), None)


def tables(kind: str | None = None) -> list[PaperTable]:
    """All tables in the paper's order, or those of a kind: accuracy, subtasks, efficiency, times, ablation."""
    return [each for each in _read() if kind in (None, each.kind)]


def table(label: str) -> PaperTable:
    """The table that the paper labels so: "tab:llava-1.5", or without "tab:"."""
    for each in _read():
        if _bare(label) == _bare(each.label):
            return each
    known = ", ".join(_bare(each.label) for each in _read())
    raise ValueError(f"the paper has no table {label!r}; its tables are: {known}")


def models() -> dict[str, str]:
    """The models of the paper's accuracy tables, by their names in lower case and by their checkpoints' names."""
    names = {each.model.lower(): each.model for each in tables("accuracy")}
    return names | {name.lower(): each.model for each in tables("accuracy") for name in each.checkpoints}


def figures(model: str, keep: int | float | None = None, method: str = ALL_TOKENS) -> dict[str, float]:
    """What the paper reports for a model, by benchmark, with its "average"; {} where it reports nothing.

    model: a name of `models()`. keep: tokens, or the share of them; None with all tokens.
    """
    name = models().get(model.lower())
    for each in tables("accuracy"):
        if each.model == name:
            count = each.tokens if keep is None else round(keep * each.tokens) if isinstance(keep, float) else keep
            row = each.of(method, count)
            return dict(row.figures) if row else {}
    return {}


@lru_cache(maxsize=1)
def _read() -> tuple[PaperTable, ...]:
    return tuple(_table(**each) for each in json.loads((files(__package__) / "tables.json").read_text("utf-8")))


def _table(file: str, average: Mapping[str, Any] | None = None, **about: Any) -> PaperTable:
    text = (files(__package__) / "figures" / f"{file}.csv").read_text("utf-8")
    lines = csv.DictReader(text.splitlines())
    rule = average or {}
    return PaperTable(
        columns=tuple(column for column in lines.fieldnames or () if column not in KEYS),
        rows=tuple(_row(cells) for cells in lines),
        averaged=tuple(rule.get("over", ())),
        divisors=rule.get("divide", {}),
        units=about.pop("units", {}),
        checkpoints=tuple(about.pop("checkpoints", ())),
        remarks=tuple(about.pop("remarks", ())),
        **about,
    )


def _row(cells: Mapping[str, str]) -> PaperRow:
    keep = int(cells["keep"]) if cells["keep"] else None
    printed = {column: cell for column, cell in cells.items() if cell and column not in KEYS}
    return PaperRow(cells.get("heading") or str(keep), keep, cells["method"], cells.get("setting") or "", printed)


def _bare(label: str) -> str:
    return label.removeprefix("tab:").strip()
