"""Evaluate: accuracy with and without pruning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from eadp.cli.app import app, budgets, console, names


@app.command("eval")
def evaluate(
    suite: Annotated[str, typer.Argument(help="What to run: pocket.")],
    model: Annotated[str, typer.Option(help="pocket, the folder of a checkpoint, or its name on the hub.")] = "pocket",
    methods: Annotated[str, typer.Option(help="Methods, with commas between them; see `eadp methods`.")] = "eadp",
    keep: Annotated[str, typer.Option(help="Budgets: counts (32) or shares (0.125), with commas.")] = "0.125,0.0625",
    samples: Annotated[int, typer.Option(help="How many test questions.", min=1)] = 2000,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="An option of the methods, mu=0.3, or of one, eadp.mu=0.3; can be repeated."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the results. One that has some is gone on with.")] = Path(
        "out/pocket"
    ),
) -> None:
    """Measure accuracy with and without pruning, all methods and budgets side by side on the same questions.

    Every answer is on the disk as soon as it is known: a killed run goes on where it was, and more methods, budgets
    or questions are added to what the folder has.
    """
    if suite != "pocket":
        raise typer.BadParameter(f"unknown suite {suite!r}; known: pocket")
    from rich.progress import Progress
    from transformers.utils.logging import disable_progress_bar

    from eadp.evaluate import pocket, report
    from eadp.evaluate.journal import Journal
    from eadp.evaluate.setting import grid

    disable_progress_bar()  # that of loading weights: one bar is enough
    try:
        chosen = [pocket.Setting(pocket.ALL), pocket.Setting(pocket.BLIND)]
        chosen += grid(names(methods), budgets(keep), options(settings or []))
        with Journal.open(out, pocket.identity(model)) as journal, Progress() as progress:
            task = progress.add_task(f"{len(chosen)} settings", total=len(chosen) * samples)
            found = pocket.evaluate(
                chosen, samples, progress=lambda done: progress.advance(task, done), model=model, journal=journal
            )
            written = report.write(found, out)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    console().print(report.as_table(found))
    console().print("written: " + ", ".join(str(path) for path in written))


def options(texts: list[str]) -> dict[str, dict[str, Any]]:
    """mu=0.3, eadp.q=0.2 → {"": {"mu": 0.3}, "eadp": {"q": 0.2}}: options of all methods and of one."""
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        method, _, option = name.strip().rpartition(".")
        if not equals or not option:
            raise typer.BadParameter(f"an option is written mu=0.3, or eadp.mu=0.3 for one method, got {text!r}")
        found.setdefault(method, {})[option] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    """0.3, 5, true, null, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
