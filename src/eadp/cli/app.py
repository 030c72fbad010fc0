"""The `eadp` command itself, and what its parts share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

LOOK, MEASURE, EVALUATE, SERVE = PANELS = ("Look", "Measure", "Evaluate", "Serve")
"""The groups of subcommands, as `eadp --help` shows them."""


class Panels(TyperGroup):
    """Subcommands group by group."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=lambda name: PANELS.index(getattr(self.commands[name], "rich_help_panel", "")))


app = typer.Typer(help="Keep only the visual tokens that serve the question.", no_args_is_help=True, cls=Panels)


def console() -> Console:
    """As wide as the terminal; into a file or a pipe, wide enough for the tables."""
    return Console() if sys.stdout.isatty() else Console(width=int(os.environ.get("COLUMNS", 120)))


def print_whole(table: Table) -> None:
    """A table at its full width: a terminal that is narrower wraps its lines, but no figure is cut."""
    out = console()
    out.width = max(out.width, out.measure(table, options=out.options.update(max_width=1000)).maximum)
    out.print(table)


@app.callback()
def main() -> None:
    """Training-free visual token pruning for vision-language models."""


def names(text: str) -> list[str]:
    """eadp,topk → both of them."""
    return [part.strip() for part in text.split(",") if part.strip()]


def budgets(text: str) -> list[int | float]:
    """32,0.125 → a count and a share."""
    return [_budget(part) for part in names(text)]


def assignments(texts: Sequence[str]) -> dict[str, Any]:
    """mu=0.3, layers=[8,16], dispersion=variance → a number, a list, a word, by their names."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name.strip() or not equals:
            raise typer.BadParameter(f"an option is written NAME=VALUE, such as mu=0.3, got {text!r}")
        found[name.strip()] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    """0.3, 5, true, null, [8,16], or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _budget(text: str) -> int | float:
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        raise typer.BadParameter(f"a budget is a count (32) or a share (0.125), got {text!r}") from None
