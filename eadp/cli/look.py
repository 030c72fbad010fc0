"""Look: what there is, what it does, what was kept and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from eadp.cli.app import app, console


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
