"""The command `eadp serve`: the OpenAI API with pruned images, through vLLM."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from eadp.cli.app import SERVE, app, assignments, budgets, console


@app.command(rich_help_panel=SERVE, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="pocket, the folder of a checkpoint, or its name on the hub.")],
    keep: Annotated[str, typer.Option(help="Tokens to keep per image: a count (64) or a share (0.125).")] = "64",
    method: Annotated[str, typer.Option(help="The method; see `eadp methods`.")] = "eadp",
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method, or of the server: beta=3, cache_mib=64.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Let requests choose keep, method and question (mm_processor_kwargs).")
    ] = False,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Print the command line of the server without running it.")
    ] = False,
) -> None:
    """Serve the OpenAI API with images pruned by the question, through vLLM.

    Prints the command line and runs it. Other options are passed to vLLM: --port 8001, --tensor-parallel-size 2.
    """
    from eadp.methods import get_method_class
    from eadp.serve import command, versions

    more = [*context.args, *(["--trust-request-mm-kwargs"] if trust else [])]
    try:
        budget = {"keep": budgets(keep)[0]} if get_method_class(method).takes_budget else {}
        line = command.build_command(model, {"method": method, **budget, **assignments(setting or [])}, more)
    except (OSError, ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from error
    # rich would wrap the line, which then could not be copied.
    print(shlex.join(line), flush=True)
    if dry:
        return
    try:
        versions.check_version()
    except RuntimeError as error:
        console().print(str(error))
        raise typer.Exit(2) from error
    raise typer.Exit(command.run_server(line))
