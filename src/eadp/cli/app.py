"""The `eadp` command itself, and the parsers and printers that its subcommands share."""

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

EXPLORE, MEASURE, EVALUATE, SERVE = PANELS = ("Explore", "Measure", "Evaluate", "Serve")
"""The groups of subcommands, in the order in which `eadp --help` shows them."""

MODEL_HELP = "`pocket`, `things`, `clips`, `smol`, `photo`, the folder of a checkpoint, or its name on the hub."
METHODS_HELP = (
    "Methods, separated by commas, optionally with a preset (eadp:published), or `zoo` for all. See `eadp methods`."
)
SET_METAVAR = "NAME=VALUE"


class GroupedCommands(TyperGroup):
    """A command that lists its subcommands in the order of their panels."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=lambda name: PANELS.index(getattr(self.commands[name], "rich_help_panel", "")))


app = typer.Typer(no_args_is_help=True, cls=GroupedCommands)


@app.callback()
def main() -> None:
    """Prune the visual tokens of vision-language models, without training.

    Start with `eadp demo`, list the methods with `eadp methods`, or draw what stays of your own image:

    eadp show photo.jpg "What is on the table?" --keep 64
    """


def get_console() -> Console:
    """Return a console as wide as the terminal; for a file or a pipe, one that is wide enough for the tables."""
    return Console() if sys.stdout.isatty() else Console(width=int(os.environ.get("COLUMNS", 120)))


def print_full_width(table: Table) -> None:
    """Print a table without cutting any number; a narrower terminal wraps its lines."""
    console = get_console()
    console.width = max(console.width, console.measure(table, options=console.options.update(max_width=1000)).maximum)
    console.print(table)


def parse_names(text: str) -> list[str]:
    """Split names at commas: "eadp,topk" gives ["eadp", "topk"]."""
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_budgets(text: str) -> list[int | float]:
    """Parse token budgets: "32,0.125" gives a count and a share."""
    return [_parse_budget(part) for part in parse_names(text)]


def parse_assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Parse NAME=VALUE pairs: "mu=0.3" gives a number, "layers=[8,16]" a list, "dispersion=variance" a string."""
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name.strip() or not equals:
            raise typer.BadParameter(f"a setting is written NAME=VALUE, such as mu=0.3, got {text!r}")
        values[name.strip()] = _parse_value(value.strip())
    return values


def _parse_value(text: str) -> Any:
    """Parse a JSON value (0.3, 5, true, null, [8,16]); anything else stays a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _parse_budget(text: str) -> int | float:
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        raise typer.BadParameter(f"a budget is a count (32) or a share (0.125), got {text!r}") from None
