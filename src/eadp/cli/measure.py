"""Measure: multiply-adds, time, memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from eadp.cli.app import MEASURE, app, budgets, console, names

MODEL = "pocket, a checkpoint's name or folder, or random:llava-1.5-7b and the like: random weights, no download."


@app.command(rich_help_panel=MEASURE)
def flops(
    model: Annotated[
        str, typer.Option(help="An architecture (llava-1.5-7b …) or a checkpoint's name or folder.")
    ] = "llava-1.5-7b",
    keep: Annotated[str, typer.Option(help="Budgets, with commas.")] = "128,64,32",
    text: Annotated[int, typer.Option(help="Text tokens of the prompt.", min=0)] = 40,
    words: Annotated[int, typer.Option(help="Words of the question.", min=1)] = 20,
    grid: Annotated[str, typer.Option(help="The image's tokens, as 24x24 or 5*24x24; default: the paper's.")] = "",
    paper: Annotated[bool, typer.Option("--paper", help="The paper's efficiency tables beside a recount.")] = False,
) -> None:
    """Count the multiply-adds of a prefill by part, exactly, from the configuration: no weights, no download."""
    from eadp.measure import cost_tables

    if paper:
        for table in cost_tables.paper_tables():
            console().print(table)
        return
    try:
        kept = [int(part) for part in keep.split(",")]
        console().print(cost_tables.cost_table(model, kept, text, words, _grids(grid)))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@app.command(rich_help_panel=MEASURE)
def bench(
    model: Annotated[str, typer.Option(help=MODEL)] = "pocket",
    methods: Annotated[
        str, typer.Option(help="Methods, with commas; eadp:published is one with a preset; see `eadp methods`.")
    ] = "eadp",
    keep: Annotated[str, typer.Option(help="Budgets: counts (32) or shares (0.125), with commas.")] = "128,64,32",
    samples: Annotated[
        int, typer.Option(help="Rounds that count; each is one sample that every row answers.", min=1)
    ] = 50,
    data: Annotated[
        Path | None, typer.Option(help='Your samples: JSONL of {"image": path, "question": text}, or a folder.')
    ] = None,
    question: Annotated[str | None, typer.Option(help="What to ask about a folder's pictures without a .txt.")] = None,
    side: Annotated[
        int | None, typer.Option(help="Make every picture a square of so many pixels; random: the paper's.", min=16)
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Shorten a random: model, its tower in proportion.", min=1)] = None,
    new_tokens: Annotated[int, typer.Option(help="Length of the answers.", min=1, max=4096)] = 16,
    warmup: Annotated[int, typer.Option(help="Rounds before those that count.", min=1)] = 2,
    clock: Annotated[str, typer.Option(help="wall, or cpu: CPU time, on a busy machine with --threads 1.")] = "wall",
    threads: Annotated[int | None, typer.Option(help="Threads of torch.", min=1)] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16; auto: the checkpoint's.")] = "auto",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: a GPU if there is one.")] = None,
    accuracy: Annotated[Path | None, typer.Option(help="results.json of `eadp eval`, for the plot.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for bench.json, .csv, .md and .png.")] = Path("out/bench"),
) -> None:
    """Measure time, memory and multiply-adds of pruning beside the unpruned model, interleaved in one run.

    Every row answers every sample, vision tower included, in turns. The tables give ratios to the unpruned model with
    95 % intervals, milliseconds, and where the prefill's time goes.
    """
    from rich.progress import Progress

    from eadp.measure import bench_report
    from eadp.measure.bench_setup import BenchSettings, prepare

    settings = BenchSettings(
        model, names(methods), budgets(keep), samples, data, question, side, layers, new_tokens, warmup
    )
    try:
        measurement = prepare(settings, clock=clock, threads=threads, dtype=dtype, device=device, accuracy=accuracy)
        for remark in measurement.remarks:
            console().print(remark)
        with Progress() as progress:
            task = progress.add_task(model, total=measurement.runs)
            report = measurement.run(lambda: progress.advance(task))
        written = bench_report.write_files(report, out, accuracy)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    for table in bench_report.as_tables(report):
        console().print(table)
    for warning in report.warnings:
        console().print(f"[bold red]warning:[/] {warning}")
    console().print("written: " + ", ".join(map(str, written)))


@app.command(rich_help_panel=MEASURE)
def plan(
    model: Annotated[str, typer.Option(help="An architecture (llava-1.5-7b …) or a checkpoint.")] = "llava-1.5-7b",
    latency: Annotated[str | None, typer.Option(help="Prefill to reach, as a ratio to all tokens: 0.5x.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory to stay within: 16GiB.")] = None,
    text: Annotated[int, typer.Option(help="Text tokens of a prompt and its answer.", min=0)] = 40,
    words: Annotated[int, typer.Option(help="Words of the question.", min=1)] = 20,
    grid: Annotated[str, typer.Option(help="The image's tokens, as 24x24 or 5*24x24; default: the paper's.")] = "",
    batch: Annotated[int, typer.Option(help="Prompts at once.", min=1)] = 1,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "bfloat16",
) -> None:
    """Find the budget that reaches a latency or a memory, and what batch or context then fits. Nothing is run.

    Latency goes by the multiply-adds of a prefill; memory is weights, KV cache and activations.
    """
    from eadp.measure import cost_tables

    if latency is None and memory is None:
        raise typer.BadParameter("say what to reach: --latency 0.5x, --memory 16GiB, or both")
    try:
        console().print(cost_tables.plan_table(model, latency, memory, text, words, _grids(grid), batch, dtype))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _grids(text: str) -> list[tuple[int, int]] | None:
    """24x24, or 5*24x24 for five of them."""
    if not text:
        return None
    found = re.fullmatch(r"(?:(\d+)\*)?(\d+)x(\d+)", text)
    if not found:
        raise ValueError(f"a grid is written 24x24, or 5*24x24 for five of them, got {text!r}")
    return [(int(found[2]), int(found[3]))] * int(found[1] or 1)
