"""The commands `eadp flops`, `bench` and `plan`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from eadp.cli.app import MEASURE, METHODS_HELP, app, get_console, parse_budgets, parse_names

ARCHITECTURE_HELP = "An architecture (llava-1.5-7b, …), or the name or folder of a checkpoint."
GRID_HELP = "Token grids of the image: 24x24, or 5*24x24 for five of them. Default: those of the paper."


@app.command(rich_help_panel=MEASURE)
def flops(
    model: Annotated[str, typer.Option(metavar="MODEL", help=ARCHITECTURE_HELP)] = "llava-1.5-7b",
    keep: Annotated[
        str, typer.Option(metavar="COUNTS", help="Numbers of visual tokens that stay, separated by commas.")
    ] = "128,64,32",
    text: Annotated[int, typer.Option(metavar="COUNT", help="Text tokens in the prompt.", min=0)] = 40,
    words: Annotated[int, typer.Option(metavar="COUNT", help="Words in the question.", min=1)] = 20,
    grid: Annotated[str, typer.Option(metavar="GRID", help=GRID_HELP)] = "",
    paper: Annotated[
        bool, typer.Option("--paper", help="Print the paper's efficiency tables next to our counts instead.")
    ] = False,
) -> None:
    """Count the multiply-adds of a prefill, part by part.

    The counts are exact and come from the model's configuration: no weights are loaded or downloaded.

    Example: eadp flops --model llava-next-7b --keep 640,320
    """
    from eadp.measure import cost_tables

    if paper:
        for table in cost_tables.paper_tables():
            get_console().print(table)
        return
    try:
        counts = [int(part) for part in keep.split(",")]
        get_console().print(cost_tables.cost_table(model, counts, text, words, _parse_grids(grid)))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@app.command(rich_help_panel=MEASURE)
def bench(
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="`pocket`, the name or folder of a checkpoint, or random:llava-1.5-7b and the like for random weights "
            "without a download.",
        ),
    ] = "pocket",
    methods: Annotated[str, typer.Option(metavar="METHODS", help=METHODS_HELP)] = "eadp",
    keep: Annotated[
        str,
        typer.Option(
            metavar="BUDGETS",
            help="How many visual tokens stay: counts (32) or shares (0.125), separated by commas.",
        ),
    ] = "128,64,32",
    samples: Annotated[
        int,
        typer.Option(metavar="COUNT", help="Measured rounds. In each round every row answers the same sample.", min=1),
    ] = 50,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help='Your own samples: a JSONL file with one {"image": path, "question": text} per line, or a folder of '
            "images, each with its question in a .txt file of the same name.",
        ),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The question about images in the folder that have no .txt file."),
    ] = None,
    frames: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            help='Measure clips of at most this many frames: those of the pocket world, or with --data "video" instead '
            'of "image": animated GIF or WebP files, or folders of frames.',
            min=2,
            max=1024,
        ),
    ] = None,
    side: Annotated[
        int | None,
        typer.Option(
            metavar="PIXELS",
            help="Resize every image to a square with this side. Default for random: models: the size in the paper.",
            min=16,
        ),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            help="Layers of a random: language model; its vision tower is shortened in proportion.",
            min=1,
        ),
    ] = None,
    new_tokens: Annotated[
        int, typer.Option(metavar="COUNT", help="Length of each answer in tokens.", min=1, max=4096)
    ] = 16,
    warmup: Annotated[int, typer.Option(metavar="COUNT", help="Rounds before the measured ones.", min=1)] = 2,
    clock: Annotated[
        str,
        typer.Option(metavar="wall|cpu", help="What is timed. Use cpu with --threads 1 on a machine that is busy."),
    ] = "wall",
    threads: Annotated[int | None, typer.Option(metavar="COUNT", help="Threads that torch uses.", min=1)] = None,
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="float32, bfloat16, float16, or auto for that of the checkpoint.")
    ] = "auto",
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="cpu or cuda. Default: a GPU if there is one.")
    ] = None,
    accuracy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A results.json of `eadp eval`, to plot accuracy against time."),
    ] = None,
    gpu: Annotated[
        bool,
        typer.Option(
            "--gpu",
            help="Measure the selection alone, per pick, and prefills on this machine's GPU instead, next to other "
            "loops. Of the other options, only --layers and --out count.",
        ),
    ] = False,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for bench.json, bench.csv, bench.md and bench.png.")
    ] = Path("out/bench"),
) -> None:
    """Measure the time, memory and multiply-adds of pruning, compared with the unpruned model.

    Every row of the table answers every sample from the vision tower on, in turns within one run. The tables give
    ratios to the unpruned model with 95 % intervals, milliseconds, and the parts of the prefill time.

    Example: eadp bench --model random:llava-1.5-7b --layers 4 --methods eadp,fastv --keep 64 --samples 10

    Example: eadp bench --frames 8 --methods eadp,vidcom2,evs --keep 0.25
    """
    from rich.progress import Progress

    if gpu:
        return _bench_gpu(layers or 4, out)

    from eadp.measure import bench_report
    from eadp.measure.bench_setup import BenchSettings, prepare

    settings = BenchSettings(
        model,
        parse_names(methods),
        parse_budgets(keep),
        samples,
        data,
        question,
        side,
        layers,
        new_tokens,
        warmup,
        frames,
    )
    try:
        measurement = prepare(settings, clock=clock, threads=threads, dtype=dtype, device=device, accuracy=accuracy)
        for remark in measurement.remarks:
            get_console().print(remark)
        with Progress() as progress:
            task = progress.add_task(model, total=measurement.runs)
            report = measurement.run(lambda: progress.advance(task))
        written = bench_report.write_files(report, out, accuracy)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    for table in bench_report.as_tables(report):
        get_console().print(table)
    for warning in report.warnings:
        get_console().print(f"[bold red]warning:[/] {warning}")
    get_console().print("written: " + ", ".join(map(str, written)))


def _bench_gpu(layers: int, out: Path) -> None:
    """Measure on this machine's GPU, print the tables and write the file."""
    from rich.table import Table

    from eadp.measure.gpu import SEND_IN, measure_gpu

    try:
        report = measure_gpu(layers=layers, progress=lambda name: get_console().print(f"measuring {name} …"))
    except ValueError as error:
        get_console().print(str(error))
        raise typer.Exit(1) from error
    for head, body in report.tables():
        table = Table(*head)
        for row in body:
            table.add_row(*row)
        get_console().print(table)
    get_console().print(f"{report.card}: written to {report.write(out)}. {SEND_IN}")


@app.command(rich_help_panel=MEASURE)
def plan(
    model: Annotated[str, typer.Option(metavar="MODEL", help=ARCHITECTURE_HELP)] = "llava-1.5-7b",
    latency: Annotated[
        str | None, typer.Option(metavar="RATIO", help="Target for the prefill, as a ratio to all tokens: 0.5x.")
    ] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Limit for the memory: 16GiB.")] = None,
    text: Annotated[int, typer.Option(metavar="COUNT", help="Text tokens in a prompt and its answer.", min=0)] = 40,
    words: Annotated[int, typer.Option(metavar="COUNT", help="Words in the question.", min=1)] = 20,
    grid: Annotated[str, typer.Option(metavar="GRID", help=GRID_HELP)] = "",
    batch: Annotated[int, typer.Option(metavar="COUNT", help="Prompts per batch.", min=1)] = 1,
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="float32, bfloat16 or float16.")] = "bfloat16",
) -> None:
    """Find the token budget that reaches a latency or fits into a memory, without running the model.

    Latency is estimated from the multiply-adds of a prefill; memory is the sum of weights, KV cache and activations.
    The table also says which batch size or context length then fits.

    Example: eadp plan --model llava-1.5-7b --latency 0.5x --memory 16GiB
    """
    from eadp.measure import cost_tables

    if latency is None and memory is None:
        raise typer.BadParameter("give a target: --latency 0.5x, --memory 16GiB, or both")
    try:
        table = cost_tables.plan_table(model, latency, memory, text, words, _parse_grids(grid), batch, dtype)
        get_console().print(table)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _parse_grids(text: str) -> list[tuple[int, int]] | None:
    """Parse "24x24" as one grid and "5*24x24" as five."""
    if not text:
        return None
    found = re.fullmatch(r"(?:(\d+)\*)?(\d+)x(\d+)", text)
    if not found:
        raise ValueError(f"a grid is written 24x24, or 5*24x24 for five of them, got {text!r}")
    return [(int(found[2]), int(found[3]))] * int(found[1] or 1)
