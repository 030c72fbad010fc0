"""Tables of text: as Markdown, and for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table

NOTHING = "–"
"""Text of a cell without a value."""


def format_markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table, without a newline at the end."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def build_table(head: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str] = (), **options: Any) -> Table:
    """Build a table for the terminal, whose cells are never wrapped.

    Args:
        head: The names of the columns.
        rows: The rows, each with one text per column.
        left: Names of the columns that are aligned to the left. The others are aligned to the right.
        **options: Further arguments of `rich.table.Table`.
    """
    table = Table(**options)
    for column in head:
        table.add_column(column, no_wrap=True, justify="left" if column in left else "right")
    for row in rows:
        table.add_row(*row)
    return table
