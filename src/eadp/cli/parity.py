"""The command `eadp parity`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track
from rich.table import Table

from eadp.cli.app import EVALUATE, app, get_console, print_full_width


@app.command(rich_help_panel=EVALUATE)
def parity(
    folder: Annotated[Path, typer.Argument(help="Folder of golden vectors, stored as METHOD/CASE.npz.")],
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="METHOD", help="Replay only the vectors of this method. Can be repeated."),
    ] = None,
) -> None:
    """Check that the methods compute what their authors' releases compute.

    Golden vectors are inputs and outputs that were recorded from the released implementations. Integers (kept tokens,
    orders, quotas, positions) must be equal; real numbers must agree to 1e-4. The command prints how many vectors of
    each method agree and where the others differ, and exits with code 1 if any vector differs.

    Example: eadp parity tests/golden --method eadp
    """
    from eadp import parity as replays
    from eadp.parity.vectors import load_vectors

    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder: give one that holds a folder of .npz files per method")
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
    print_full_width(table)
    different = [outcome for outcome in outcomes if not outcome.equal]
    for outcome in different:
        get_console().print(f"{outcome.vector.method}/{outcome.vector.case}: {'; '.join(outcome.differences)}")
    get_console().print(f"{len(outcomes) - len(different)} of {len(outcomes)} vectors equal")
    raise typer.Exit(1 if different else 0)
