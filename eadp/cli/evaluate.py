"""Evaluate: accuracy with and without pruning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eadp.cli.app import app, budgets, console, names


@app.command("eval")
def evaluate(
    suite: Annotated[str, typer.Argument(help="What to run: pocket.")],
    methods: Annotated[str, typer.Option(help="Methods, with commas between them; see `eadp methods`.")] = "eadp",
    keep: Annotated[str, typer.Option(help="Budgets: counts (32) or shares (0.125), with commas.")] = "0.125,0.0625",
    samples: Annotated[int, typer.Option(help="How many test questions.", min=1)] = 2000,
    out: Annotated[Path, typer.Option(help="Folder for results.json, table.md and accuracy.png.")] = Path("out/pocket"),
) -> None:
    """Measure accuracy with and without pruning, all methods and budgets side by side on the same questions."""
    if suite != "pocket":
        raise typer.BadParameter(f"unknown suite {suite!r}; known: pocket")
    from rich.progress import Progress

    from eadp.evaluate import pocket, report

    settings = [pocket.Setting(pocket.ALL), pocket.Setting(pocket.BLIND)]
    settings += [pocket.Setting(name, budget) for name in names(methods) for budget in budgets(keep)]
    with Progress() as progress:
        task = progress.add_task(f"{len(settings)} settings", total=samples)
        found = pocket.evaluate(settings, samples, progress=lambda done: progress.advance(task, done))
    console().print(report.as_table(found))
    console().print("written: " + ", ".join(str(path) for path in report.write(found, out)))
