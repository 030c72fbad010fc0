"""Study: the paper's tables, sweeps over settings, and whether a difference is real."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from eadp.cli.app import app, console


@app.command()
def paper(
    model: Annotated[
        str, typer.Argument(help="A model (qwen2.5-vl-7b, Qwen/Qwen2.5-VL-7B-Instruct) or a table's label; or all.")
    ] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="As Markdown, to paste into a page.")] = False,
) -> None:
    """Print the paper's result tables: accuracy, MVBench's subtasks, efficiency, ablations."""
    from eadp.evaluate.paper import layout, models, table, tables

    if not model:
        found = tables()
    elif name := models().get(model.lower()):
        found = [each for each in tables() if each.model == name]
    else:
        try:
            found = [table(model)]
        except ValueError as error:
            known = ", ".join(dict.fromkeys(models().values())).lower()
            raise typer.BadParameter(f"{error}; or give one of its models: {known}") from None
    for each in found:
        if markdown:
            typer.echo(f"{each.caption}\n\n{layout.as_markdown(each)}\n")
        else:
            _print_whole(layout.as_grid(each))


def _print_whole(grid: Table) -> None:
    """A table at its full width: a terminal that is narrower wraps its lines, but no figure is cut."""
    out = console()
    out.width = max(out.width, out.measure(grid, options=out.options.update(max_width=1000)).maximum)
    out.print(grid)
    out.print()
