"""The command `eadp warmup`."""

from __future__ import annotations

from eadp.cli.app import SERVE, app, get_console


@app.command(rich_help_panel=SERVE)
def warmup() -> None:
    """Compile the selection loops of the CPU ahead of the first image, and say where they are kept.

    The first selection compiles them otherwise, which takes some seconds, once per version of numba and type of CPU.

    Example: eadp warmup
    """
    from eadp.core.warmup import warm_up

    done = warm_up()
    get_console().print(
        f"compiled {done.compiled} loops, read {done.read} from the cache: {done.folder}", soft_wrap=True
    )
