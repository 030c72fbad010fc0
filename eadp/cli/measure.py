"""Measure: multiply-adds, time, memory."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from eadp.cli.app import app, console


@app.command()
def flops(
    model: Annotated[
        str, typer.Option(help="An architecture (llava-1.5-7b …) or a checkpoint's name or folder.")
    ] = "llava-1.5-7b",
    keep: Annotated[str, typer.Option(help="Budgets, with commas.")] = "128,64,32",
    text: Annotated[int, typer.Option(help="Text tokens of the prompt.", min=0)] = 40,
    words: Annotated[int, typer.Option(help="Words of the question.", min=1)] = 20,
    grid: Annotated[str, typer.Option(help="The image's tokens, as 24x24 or 5*24x24; default: the paper's.")] = "",
    paper: Annotated[bool, typer.Option("--paper", help="The paper's efficiency tables beside a recount.")] = False,
) -> None:
    """Count the multiply-adds of a prefill by part, exactly, from the configuration: no weights, no download."""
    from eadp.measure import report

    if paper:
        for table in report.beside_the_paper():
            console().print(table)
        return
    try:
        console().print(report.costs(model, [int(part) for part in keep.split(",")], text, words, _grids(grid)))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _grids(text: str) -> list[tuple[int, int]] | None:
    """24x24, or 5*24x24 for five of them."""
    if not text:
        return None
    found = re.fullmatch(r"(?:(\d+)\*)?(\d+)x(\d+)", text)
    if not found:
        raise ValueError(f"a grid is written 24x24, or 5*24x24 for five of them, got {text!r}")
    return [(int(found[2]), int(found[3]))] * int(found[1] or 1)
