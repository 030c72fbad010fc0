"""The `eadp` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(help="Keep only the visual tokens that serve the question.", no_args_is_help=True)


@app.callback()
def main() -> None:
    """Training-free visual token pruning for vision-language models."""


@app.command()
def methods() -> None:
    """List the pruning methods: paper, stage, what they need, whether they merge."""
    from eadp.methods.base import REGISTRY

    table = Table("method", "paper", "stage", "needs", "merges")
    for name, method in sorted(REGISTRY.items()):
        needs = ", ".join(sorted(method.needs)).replace("_", " ") or "–"
        table.add_row(name, method.citation, method.stage, needs, "yes" if method.merges else "no")
    Console().print(table)


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
    console = Console()
    console.print(report.as_table(found))
    console.print("written: " + ", ".join(str(path) for path in report.write(found, out)))


def _budget(text: str) -> int | float:
    try:
        return int(text) if text.strip().isdigit() else float(text)
    except ValueError:
        raise typer.BadParameter(f"a budget is a count (32) or a share (0.125), got {text!r}") from None
