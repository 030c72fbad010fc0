"""Harnesses: other people's evaluation, with a pruned model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from eadp.cli.app import EVALUATE, app, assignments, budgets, console, names


@app.command(rich_help_panel=EVALUATE, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def vlmeval(
    context: typer.Context,
    data: Annotated[
        str, typer.Option(help="Data sets, with commas; NAME:CLASS for $LMUData/NAME.tsv, read by that class of its.")
    ],
    model: Annotated[str, typer.Option(help="pocket, the folder of a checkpoint, or its name on the hub.")],
    method: Annotated[
        str, typer.Option(help="See `eadp methods`; eadp:published is one with a preset; none for all tokens.")
    ] = "eadp",
    keep: Annotated[str, typer.Option(help="A count (256) or a share (0.25).")] = "",
    resolution: Annotated[
        int, typer.Option(help="Side of the square that images become (Qwen, LLaVA-NeXT); 0: as they are.", min=0)
    ] = 0,
    frames: Annotated[int, typer.Option(help="Frames of a clip, where the data set does not say.", min=1)] = 32,
    setting: Annotated[
        list[str],
        typer.Option(
            "--set",
            help="A setting of the method or of the model: --set mu=0.2 --set preset=published --set sign=1 --set "
            "square=pad --set question=released --set positions=keep.",
        ),
    ] = [],  # noqa: B006 - typer reads it, nobody writes it
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer; 0: as the checkpoint says.", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="Work directory: results, side files and journal.")] = Path("out/vlmeval"),
    journal: Annotated[
        Path | None, typer.Option(help="Where answers are kept at once; a later run goes on from there.")
    ] = None,
) -> None:
    """Evaluate a pruned model with VLMEvalKit. Further options are VLMEvalKit's own, such as --judge exact_matching.

    Pruning settings, tokens used and times go into a file beside its results. Started again after a kill with the same
    settings, it answers only what is not in the journal yet.
    """
    if not names(data):
        raise typer.BadParameter("give at least one data set, such as --data MMBench_DEV_EN_V11")
    try:
        from eadp.evaluate import vlmeval as harness
    except ModuleNotFoundError as missing:
        if missing.name != "vlmeval":
            raise
        raise typer.BadParameter("VLMEvalKit is not installed here: pip install 'eadp[vlmeval]'") from missing
    from eadp.evaluate.harness_settings import HarnessSettings

    arguments: dict[str, Any] = {"pretrained": model, "method": method, "frames": frames, **assignments(setting)}
    if len(kept := budgets(keep)) > 1:
        raise typer.BadParameter(f"one budget at a time, got {keep}; `eadp eval` runs several")
    if kept:
        arguments["keep"] = kept[0]
    if resolution:
        arguments["resolution"] = resolution
    try:
        settings = HarnessSettings.of(**arguments)
        written = harness.evaluate(
            names(data),
            settings,
            out,
            journal=journal,
            wishes={"max_new_tokens": max_new_tokens} if max_new_tokens else {},
            arguments=context.args,
        )
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from error
    except RuntimeError as error:
        console().print(str(error))
        raise typer.Exit(1) from error
    console().print("written: " + ", ".join(map(str, written)))
