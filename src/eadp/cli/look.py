"""Look: what there is, what it does, what was kept and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from eadp.cli.app import LOOK, app, budgets, console, names

if TYPE_CHECKING:
    from eadp.view.comparison import Comparison


@app.command(rich_help_panel=LOOK)
def demo(
    keep: Annotated[float, typer.Option(help="Share of the visual tokens that stay.", min=0.004, max=1)] = 0.125,
    questions: Annotated[int, typer.Option(help="How many questions to ask.", min=1)] = 8,
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("out/demo.png"),
) -> None:
    """Ask the pocket model about drawn scenes, with all visual tokens and with few, and draw what was kept."""
    from eadp import demo

    demo.run(keep, questions, out)


FORMATS = (".png", ".webp", ".jpg")

Picture = Annotated[Path, typer.Argument(help="A picture; or a clip: an animated GIF or WebP, or a folder of frames.")]
Question = Annotated[str, typer.Argument(help="What to ask about it.")]
Model = Annotated[str, typer.Option(help="pocket, the folder of a checkpoint, or its name on the hub.")]
Keep = Annotated[str, typer.Option(help="How many visual tokens stay: a count (64) or a share (0.125).")]
Methods = Annotated[str, typer.Option(help="Methods side by side, with commas between them; see `eadp methods`.")]
Frames = Annotated[int, typer.Option(help="Of a clip with more frames, so many, evenly spread.", min=1)]


@app.command(rich_help_panel=LOOK)
def show(
    picture: Picture,
    question: Question,
    model: Model = "pocket",
    keep: Keep = "64",
    method: Methods = "eadp,cdpruner,topk",
    frames: Frames = 8,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the picture goes.")] = Path("out/show.png"),
) -> None:
    """Draw what was kept: the words by their entropy, each method's map, the kept tokens lit, the answers.

    eadp show photo.jpg "What is on the table?" --keep 64 --method eadp,cdpruner,topk -o table.png
    """
    from eadp.view.figure import draw_figure

    if out.suffix.lower() not in FORMATS:
        raise typer.BadParameter(f"the figure is written as {', '.join(FORMATS)}, got {str(out)!r}")
    comparison = _looked_at(picture, question, model, keep, method, frames)
    out.parent.mkdir(parents=True, exist_ok=True)
    draw_figure(comparison).save(out)
    _tell(comparison, out)


@app.command(rich_help_panel=LOOK)
def report(
    picture: Picture,
    question: Question,
    model: Model = "pocket",
    keep: Keep = "64",
    method: Methods = "eadp,cdpruner,topk",
    frames: Frames = 8,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the page goes.")] = Path("out/report.html"),
) -> None:
    """Write one page that works offline: word maps, pick order, who represents whom, the picks replayed by a slider.

    eadp report photo.jpg "What is on the table?" --keep 64 -o table.html
    """
    from eadp.view.report import render_report

    comparison = _looked_at(picture, question, model, keep, method, frames)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(render_report(comparison), encoding="utf-8")
    _tell(comparison, out)


@app.command(rich_help_panel=LOOK)
def view(
    model: Model = "pocket",
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.", min=1, max=65535)] = 7860,
) -> None:
    """Open the report as a live page: upload a picture, ask, choose methods and budget.

    Needs `pip install eadp[view]`. Serves this machine alone unless --host says otherwise.
    """
    from importlib.util import find_spec

    if find_spec("gradio") is None:
        raise typer.BadParameter("`eadp view` needs Gradio: pip install 'eadp[view]'")
    from eadp.view.page import serve

    try:
        serve(model, host, port)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


@app.command(rich_help_panel=LOOK)
def methods() -> None:
    """List the pruning methods: paper, stage, what they need, whether they merge, presets."""
    from eadp.methods import InsideMethod, get_method_class, list_methods

    table = Table("method", "paper", "stage", "needs", "merges", "presets")
    for name in list_methods():
        method = get_method_class(name)
        stage = "inside" if issubclass(method, InsideMethod) else "before"
        needs = ", ".join(sorted(method.needs)).replace("_", " ") or "–"
        merges = "yes" if method.merges else "no"
        table.add_row(name, method.citation, stage, needs, merges, "\n".join(method.presets) or "–")
    console().print(table)


def _looked_at(picture: Path, question: str, model: str, keep: str, method: str, frames: int) -> Comparison:
    from rich.progress import Progress

    from eadp.utils.images import read_frames
    from eadp.view.comparer import MethodComparer, check_request

    chosen = names(method)
    if len(many := budgets(keep)) != 1:
        raise typer.BadParameter(f"--keep takes one budget, a count (64) or a share (0.125), got {keep!r}")
    try:
        check_request(question, chosen, many[0])
        images = read_frames(picture, frames)
        with Progress(transient=True, console=console()) as progress:
            task = progress.add_task("loading the model", total=len(chosen) + 3)
            comparer = MethodComparer.from_name(model)
            return comparer.compare(
                images,
                question,
                chosen,
                many[0],
                progress=lambda step: progress.update(task, description=step, advance=1),
            )
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def _tell(comparison: Comparison, out: Path) -> None:
    from eadp.view.figure import coverages

    table = Table("method", "tokens", "coverage", "prefill", "of all tokens'", "answer")
    whole = comparison.unpruned
    if whole is not None:
        table.add_row("all tokens", str(comparison.total), "", f"{whole.prefill:.1f} ms", "1.00", Text(whole.text))
    for result, covered in zip(comparison.results, coverages(comparison), strict=True):
        if result.answer is not None and whole is not None:
            ratio = f"{result.answer.prefill / whole.prefill:.2f}"
            share = "" if covered is None else f"{covered:.2%}"
            time = f"{result.answer.prefill:.1f} ms"
            table.add_row(result.name, str(len(result.selection)), share, time, ratio, Text(result.answer.text))
    console().print(table)
    for note in comparison.notes:
        console().print(note, markup=False)
    console().print(f"written: {out}", markup=False)
