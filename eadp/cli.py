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
    """List the pruning methods: paper, stage, what they need, whether they merge, presets."""
    from eadp.methods import NAMES
    from eadp.methods.base import REGISTRY

    table = Table("method", "paper", "stage", "needs", "merges", "presets")
    for name in NAMES:
        method = REGISTRY[name]
        needs = ", ".join(sorted(method.needs)).replace("_", " ") or "–"
        merges = "yes" if method.merges else "no"
        table.add_row(name, method.citation, method.stage, needs, merges, "\n".join(method.presets) or "–")
    Console().print(table)


@app.command()
def demo(
    keep: Annotated[int, typer.Option(help="How many of the 576 tokens stay.", min=1, max=576)] = 64,
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("out/demo.png"),
) -> None:
    """Show the selection on a photo: the words by entropy, the kept tokens, and a picture of them."""
    from eadp import demo

    demo.run(keep, out)
