"""Study: the paper's tables, sweeps over settings, and whether a difference is real."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
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


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="A folder of results, or FOLDER:SETTING; a results.json does too.")],
    b: Annotated[str, typer.Argument(help="The other one; :SETTING for another setting of the same folder.")],
    common: Annotated[bool, typer.Option("--common", help="Compare what both have where samples differ.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the differences to this file too, as JSON.")] = None,
) -> None:
    """Say whether the difference between two runs is real: on the same samples, with a paired bootstrap interval.

    Two folders: eadp compare out/with out/without. Two settings of one: eadp compare "out/pocket:eadp keep=0.125"
    ":topk keep=0.125"; a part of a name will do where it fits one run only. Results of `eadp eval`, `eadp sweep` and
    the harness plugins work alike. Runs on different samples are refused.
    """
    from eadp.evaluate import compare

    try:
        found = [compare.difference(*pair, common=common) for pair in compare.pairs(a, b)]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    _print_whole(compare.as_table(found))
    for each in found:
        typer.echo(each.sentence)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps([{**asdict(each), "real": each.real} for each in found], indent=1) + "\n")
        typer.echo(f"written: {out}")


def _print_whole(grid: Table) -> None:
    """A table at its full width: a terminal that is narrower wraps its lines, but no figure is cut."""
    out = console()
    out.width = max(out.width, out.measure(grid, options=out.options.update(max_width=1000)).maximum)
    out.print(grid)
    out.print()
