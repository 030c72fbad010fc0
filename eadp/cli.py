"""The `eadp` command."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(help="Keep only the visual tokens that serve the question.", no_args_is_help=True)


def console() -> Console:
    """As wide as the terminal; into a file or a pipe, wide enough for the tables."""
    return Console() if sys.stdout.isatty() else Console(width=int(os.environ.get("COLUMNS", 120)))


@app.callback()
def main() -> None:
    """Training-free visual token pruning for vision-language models."""


@app.command()
def methods() -> None:
    """List the pruning methods: paper, stage, what they need, whether they merge, presets."""
    from eadp.methods import NAMES
    from eadp.methods.base import REGISTRY

    table = Table("method", "paper", "stage", "needs", "merges", "presets")
    for name in NAMES:
        method = REGISTRY[name]
        needs = ", ".join(sorted(method.needs)).replace("_", " ") or "–"
        merges = "yes" if method.merges else "no"
        table.add_row(name, method.citation, method.stage, needs, merges, "\n".join(method.presets) or "–")
    console().print(table)


@app.command()
def demo(
    keep: Annotated[float, typer.Option(help="Share of the visual tokens that stay.", min=0.004, max=1)] = 0.125,
    questions: Annotated[int, typer.Option(help="How many questions to ask.", min=1)] = 8,
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("out/demo.png"),
) -> None:
    """Ask the pocket model about drawn scenes, with all visual tokens and with few, and draw what was kept."""
    from eadp import demo

    demo.run(keep, questions, out)


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

    budgets = [_budget(part) for part in keep.split(",")]
    settings = [pocket.Setting(pocket.ALL), pocket.Setting(pocket.BLIND)]
    settings += [pocket.Setting(name.strip(), budget) for name in methods.split(",") for budget in budgets]
    with Progress() as progress:
        task = progress.add_task(f"{len(settings)} settings", total=samples)
        found = pocket.evaluate(settings, samples, progress=lambda done: progress.advance(task, done))
    console().print(report.as_table(found))
    console().print("written: " + ", ".join(str(path) for path in report.write(found, out)))


def _budget(text: str) -> int | float:
    try:
        return int(text) if text.strip().isdigit() else float(text)
    except ValueError:
        raise typer.BadParameter(f"a budget is a count (32) or a share (0.125), got {text!r}") from None


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
