"""The command `eadp serve`."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from eadp.cli.app import MODEL_HELP, SERVE, SET_METAVAR, app, get_console, parse_assignments, parse_budgets


@app.command(rich_help_panel=SERVE, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    keep: Annotated[
        str, typer.Option(metavar="BUDGET", help="How many tokens of each image stay: a count (64) or a share (0.125).")
    ] = "64",
    method: Annotated[str, typer.Option(metavar="METHOD", help="The pruning method. See `eadp methods`.")] = "eadp",
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar=SET_METAVAR,
            help="A setting of the method (beta=3) or of the server (cache_mib=64). Can be repeated.",
        ),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Let requests set keep, method, question and other settings in mm_processor_kwargs['eadp'], and "
            "vLLM's media_io_kwargs, for which vLLM has the same switch. Only for clients that you trust.",
        ),
    ] = False,
    trust_processor: Annotated[
        bool,
        typer.Option(
            "--trust-processor-kwargs",
            help="Like --trust, and let requests change how images are processed (crop_size, do_resize, …). A request "
            "with unfit values can stop the server.",
        ),
    ] = False,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Print the command line of the server without running it.")
    ] = False,
) -> None:
    """Serve the OpenAI API through vLLM and prune each image for the question that is asked about it.

    The command prints vLLM's command line and runs it. Options that are not listed here are passed to vLLM, for example
    --port 8001 or --tensor-parallel-size 2.

    Example: eadp serve llava-hf/llava-1.5-7b-hf --keep 64 --port 8001
    """
    from eadp.methods import get_method_class
    from eadp.serve import command, versions

    vllm_options = [*context.args, *(["--trust-request-mm-kwargs"] if trust or trust_processor else [])]
    try:
        budget = {"keep": _parse_one_budget(keep)} if get_method_class(method).takes_budget else {}
        settings = {"method": method, **budget, **parse_assignments(setting or [])}
        if trust and not trust_processor:
            settings["processor_kwargs"] = False
        arguments = command.build_command(model, settings, vllm_options)
    except (OSError, ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from error
    # Not printed with rich, which would wrap the line and make it unfit to copy.
    print(shlex.join(["python", *arguments]), flush=True)
    if dry:
        return
    try:
        versions.check_version()
    except RuntimeError as error:
        get_console().print(str(error))
        raise typer.Exit(2) from error
    raise typer.Exit(command.run_server(arguments))


def _parse_one_budget(text: str) -> int | float:
    budgets = parse_budgets(text)
    if len(budgets) != 1:
        raise typer.BadParameter(
            f"--keep is one budget, a count (64) or a share (0.125), got {text!r}; --trust lets requests set others"
        )
    return budgets[0]
