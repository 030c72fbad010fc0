"""The command `eadp vlmeval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from eadp.cli.app import (
    EVALUATE,
    MODEL_HELP,
    SET_METAVAR,
    app,
    get_console,
    parse_assignments,
    parse_budgets,
    parse_names,
)


@app.command(rich_help_panel=EVALUATE, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def vlmeval(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Option(
            metavar="DATASETS",
            help="Data sets of VLMEvalKit, separated by commas. NAME:CLASS reads $LMUData/NAME.tsv with VLMEvalKit's "
            "class CLASS.",
        ),
    ],
    model: Annotated[str, typer.Option(metavar="MODEL", help=MODEL_HELP)],
    method: Annotated[
        str,
        typer.Option(
            metavar="METHOD",
            help="The method, optionally with a preset (eadp:published); `none` keeps all tokens. See `eadp methods`.",
        ),
    ] = "eadp",
    keep: Annotated[
        str, typer.Option(metavar="BUDGET", help="How many visual tokens stay: a count (256) or a share (0.25).")
    ] = "",
    resolution: Annotated[
        int,
        typer.Option(
            metavar="PIXELS",
            help="Resize every image to a square with this side (Qwen, LLaVA-NeXT). 0 keeps the size of each image.",
            min=0,
        ),
    ] = 0,
    frames: Annotated[
        int, typer.Option(metavar="COUNT", help="Frames per video, unless the data set sets its own number.", min=1)
    ] = 32,
    setting: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar=SET_METAVAR,
            help="A setting of the method (mu=0.2) or of the model (square=pad, question=released, positions=keep). "
            "Can be repeated.",
        ),
    ] = [],  # noqa: B006 - typer only reads it
    max_new_tokens: Annotated[
        int,
        typer.Option(metavar="COUNT", help="Maximum length of an answer. 0 uses the checkpoint's own limit.", min=0),
    ] = 0,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="VLMEvalKit's work directory. Our summary and journal go here too.")
    ] = Path("out/vlmeval"),
    journal: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder where each answer is saved as soon as it is known. A later run continues from it.",
        ),
    ] = None,
) -> None:
    """Evaluate a pruned model with VLMEvalKit.

    Options that are not listed here are passed to VLMEvalKit, for example --judge exact_matching. The pruning settings,
    token counts and times are written next to VLMEvalKit's results. Repeat the command with the same settings to
    continue an interrupted run.

    Example: eadp vlmeval --data MMBench_DEV_EN_V11 --model Qwen/Qwen2.5-VL-7B-Instruct --keep 256 --resolution 1008
    """
    if not parse_names(data):
        raise typer.BadParameter("give at least one data set, such as --data MMBench_DEV_EN_V11")
    try:
        from eadp.evaluate import vlmeval as harness
    except ModuleNotFoundError as missing:
        if missing.name != "vlmeval":
            raise
        raise typer.BadParameter("VLMEvalKit is not installed here: pip install 'eadp[vlmeval]'") from missing
    from eadp.evaluate.harness_settings import HarnessSettings

    arguments: dict[str, Any] = {"pretrained": model, "method": method, "frames": frames, **parse_assignments(setting)}
    if len(kept := parse_budgets(keep)) > 1:
        raise typer.BadParameter(f"--keep takes one budget here, got {keep}; `eadp eval` runs several")
    if kept:
        arguments["keep"] = kept[0]
    if resolution:
        arguments["resolution"] = resolution
    try:
        settings = HarnessSettings.from_arguments(**arguments)
        written = harness.evaluate(
            parse_names(data),
            settings,
            out,
            journal=journal,
            generation={"max_new_tokens": max_new_tokens} if max_new_tokens else {},
            arguments=context.args,
        )
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from error
    except RuntimeError as error:
        get_console().print(str(error))
        raise typer.Exit(1) from error
    get_console().print("written: " + ", ".join(map(str, written)))
