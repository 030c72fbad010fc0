"""Study: the paper's tables, sweeps over settings, and whether a difference is significant."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eadp.cli.app import EVALUATE, app, assignments, budgets, names, print_whole
from eadp.cli.evaluate import POCKET, with_progress

if TYPE_CHECKING:
    from eadp.evaluate.suites import SuiteResult
    from eadp.evaluate.sweep import Blocks, SweepPlan

QUESTIONS = 500


@app.command(rich_help_panel=EVALUATE)
def paper(
    model: Annotated[
        str, typer.Argument(help="A model (qwen2.5-vl-7b, Qwen/Qwen2.5-VL-7B-Instruct) or a table's label; or all.")
    ] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="As Markdown, to paste into a page.")] = False,
) -> None:
    """Print the paper's result tables: accuracy, MVBench's subtasks, efficiency, ablations."""
    from eadp.paper import layout, models, table, tables

    if not model:
        found = tables()
    elif name := models().get(model.lower()):
        found = [each for each in tables() if each.model == name]
    else:
        try:
            found = [table(model)]
        except ValueError as error:
            known = ", ".join(dict.fromkeys(models().values())).lower()
            raise typer.BadParameter(f"{error}; or give one of its models: {known}") from None
    for each in found:
        if markdown:
            typer.echo(f"{each.caption}\n\n{layout.as_markdown(each)}\n")
        else:
            print_whole(layout.as_table(each))


@app.command(rich_help_panel=EVALUATE)
def sweep(
    suite: Annotated[
        str, typer.Argument(help="pocket, paper-llava, paper-qwen, paper-video, or the path of a suite's .json.")
    ] = POCKET,
    over: Annotated[
        list[str] | None,
        typer.Option(help="A setting and its values, beta=0,0.5,2 or keep=8,16; repeat it for more settings."),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="All values of the paper's ablations on LLaVA-1.5-7B, with its figures.")
    ] = False,
    grid: Annotated[
        bool, typer.Option("--grid", help="Every combination of the values; else one setting at a time.")
    ] = False,
    method: Annotated[
        str, typer.Option(help="The method, or one with a preset, eadp:published; see `eadp methods`.")
    ] = "eadp",
    keep: Annotated[str, typer.Option(help="Its budget: a count (32) or a share (0.125).")] = "0.0625",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="An option that is changed everywhere, mu=0.3; can be repeated.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="pocket, the folder of a checkpoint, or its name on the hub; default: the suite's.")
    ] = "",
    samples: Annotated[
        int | None, typer.Option(help="How many questions of each benchmark; default: all, of pocket 500.", min=1)
    ] = None,
    only: Annotated[str, typer.Option(help="These benchmarks of the suite, with commas; see `eadp suites`.")] = "",
    python: Annotated[
        str | None, typer.Option(help="Interpreter of the environment that has the harness; default: this one.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Prompts that a harness answers together.", min=1)] = 1,
    out: Annotated[Path, typer.Option(help="Folder of the results. One that has some is gone on with.")] = Path(
        "out/sweep"
    ),
) -> None:
    """Try values of a method's settings, and say for each whether it differs from the default.

    eadp sweep --over beta=0,0.5,2,5,10 --over mu=0,0.5,1: first five values of beta, then three of mu, all else at its
    default. With --grid: all fifteen combinations. Any field of any method can be tried: mu, q, beta, tau, gamma,
    smoothing, aggregation, dispersion, allocation, keep of EADP, …, its preset (preset=paper,published), and where
    tokens are put (positions=keep,renumber).

    Every answer is on the disk as soon as it is known; a killed sweep goes on where it was. Writes sweep.json, sweep.md
    and a plot for each benchmark.
    """
    from eadp.evaluate import sweep, sweep_report

    try:
        if paper and grid:
            raise ValueError("the paper changes one setting at a time: --paper goes without --grid")
        values = (sweep.of_the_paper() if paper else {}) | sweep.over(over or [])
        plan = sweep.plan(method, _one(budgets(keep)), assignments(settings or []), values, grid)
        if suite == POCKET:
            found, failures = _on_pocket(plan, model or POCKET, samples or QUESTIONS, out), []
        else:
            ran = _on_suite(plan, suite, model, samples, names(only), python, batch, out)
            found, failures = sweep.on_suite(plan, ran), ran.failures
        written = sweep_report.write(plan, found, out, paper)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    for name, blocks in found.items():
        print_whole(sweep_report.as_table(plan, name, blocks, paper))
    for failure in failures:
        typer.echo(f"failed: {failure}")
    typer.echo("written: " + ", ".join(str(path) for path in written))
    if failures:
        raise typer.Exit(1)


def _on_pocket(plan: SweepPlan, model: str, samples: int, out: Path) -> dict[str, Blocks]:
    from rich.progress import Progress
    from transformers.utils.logging import disable_progress_bar

    from eadp.evaluate.sweep import on_pocket

    disable_progress_bar()  # that of loading weights: one bar is enough
    with Progress() as progress:
        task = progress.add_task(f"{len(plan.specs)} settings", total=len(plan.specs) * samples)
        return on_pocket(plan, samples, model, out, lambda done: progress.advance(task, done))


def _on_suite(
    plan: SweepPlan,
    name: str,
    model: str,
    samples: int | None,
    only: list[str],
    python: str | None,
    batch: int,
    out: Path,
) -> SuiteResult:
    from eadp.evaluate import suites

    suite = suites.load(name)
    if not (model := model or suite.model):
        raise ValueError(f"{suite.name} has no model of its own: give one with --model")
    benchmarks, _ = suite.choose(only, suites.judge())
    return with_progress(suites.SuitePlan(suite, model, plan.specs, benchmarks, out, python, {}, samples, batch))


def _one(found: list[int | float]) -> int | float:
    if len(found) != 1:
        raise typer.BadParameter("a sweep has one --keep; to try several: --over keep=8,16,32")
    return found[0]


@app.command(rich_help_panel=EVALUATE)
def compare(
    a: Annotated[str, typer.Argument(help="A folder of results, or FOLDER:WORDS of a run's name; a results.json too.")],
    b: Annotated[str, typer.Argument(help="The other one; :WORDS for another run of the same folder.")],
    common: Annotated[bool, typer.Option("--common", help="Compare what both have where samples differ.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the differences to this file too, as JSON.")] = None,
) -> None:
    """Say whether two runs differ significantly (95 %, uncorrected), by a paired bootstrap over the same samples.

    Two folders: eadp compare out/with out/without. Two settings of one: eadp compare "out/pocket:eadp keep=0.125"
    ":topk keep=0.125". Words of their names will do: out/pocket:eadp :topk compares the two at each budget, or on each
    benchmark, and out/pocket:eadp:published :eadp a preset with the defaults. Works on the results of `eadp eval`, of
    `eadp sweep` and on the samples that lmms-eval logs. Runs on different samples are refused.
    """
    from eadp.evaluate import compare

    try:
        found = [compare.difference(*pair, common=common) for pair in compare.pairs(a, b)]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    print_whole(compare.as_table(found))
    for each in found:
        typer.echo(each.sentence)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(
            json.dumps([{**asdict(each), "significant": each.significant} for each in found], indent=1) + "\n"
        )
        typer.echo(f"written: {out}")
