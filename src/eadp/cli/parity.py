"""Parity: do the methods compute what their authors' releases compute?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track
from rich.table import Table

from eadp.cli.app import EVALUATE, app, console, print_whole


@app.command(rich_help_panel=EVALUATE)
def parity(
    folder: Annotated[Path, typer.Argument(help="Folder of golden vectors: METHOD/CASE.npz.")],
    method: Annotated[list[str] | None, typer.Option(help="Only these folders; can be repeated.")] = None,
) -> None:
    """Replay golden vectors: the inputs and answers of released implementations.

    Prints for each method how many vectors we equal, and for those that we do not, where. Whole numbers (kept tokens,
    orders, quotas, positions) must be equal, real numbers to 1e-4. Ends with code 1 where anything differs.
    """
    from eadp import parity as replays
    from eadp.parity.vectors import load_vectors

    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is no folder: give one with a folder of .npz files for each method")
    vectors = [each for each in load_vectors(folder) if each.method in (method or replays.TITLES)]
    if not vectors:
        raise typer.BadParameter(f"{folder} has no vectors of {', '.join(method or replays.TITLES)}")
    try:
        outcomes = [replays.compare(each) for each in track(vectors, "replaying", transient=True)]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    table = Table("method", "release", "equal", "vectors")
    for title, release, equal, total in replays.summarize(outcomes):
        table.add_row(title, release, str(equal), str(total))
    print_whole(table)
    different = [outcome for outcome in outcomes if not outcome.equal]
    for outcome in different:
        console().print(f"{outcome.vector.method}/{outcome.vector.case}: {'; '.join(outcome.differences)}")
    console().print(f"{len(outcomes) - len(different)} of {len(outcomes)} vectors equal")
    raise typer.Exit(1 if different else 0)
