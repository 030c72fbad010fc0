"""The commands `eadp paper`, `sweep` and `compare`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eadp.cli.app import (
    EVALUATE,
    SET_METAVAR,
    app,
    parse_assignments,
    parse_budgets,
    parse_names,
    print_full_width,
)
from eadp.cli.evaluate import (
    HARD_HELP,
    ONLY_HELP,
    OUT_HELP,
    PYTHON_HELP,
    SUITE_MODEL_HELP,
    SWEEP_SUITE_HELP,
    run_with_progress,
)
from eadp.pocket.names import POCKET

if TYPE_CHECKING:
    from eadp.evaluate.suites import SuiteResult
    from eadp.evaluate.sweep import Blocks, SweepPlan

DEFAULT_QUESTIONS = 500


@app.command(rich_help_panel=EVALUATE)
def paper(
    model: Annotated[
        str,
        typer.Argument(
            help="A model (qwen2.5-vl-7b, Qwen/Qwen2.5-VL-7B-Instruct) or the label of a table. Default: all tables."
        ),
    ] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, to paste into a page.")] = False,
) -> None:
    """Print the result tables of the EADP paper: accuracy, subtasks of MVBench, efficiency, ablations.

    Example: eadp paper qwen2.5-vl-7b
    """
    from eadp.paper import layout, models, table, tables

    if not model:
        chosen = tables()
    elif name := models().get(model.lower()):
        chosen = [each for each in tables() if each.model == name]
    else:
        try:
            chosen = [table(model)]
        except ValueError as error:
            known = ", ".join(dict.fromkeys(models().values())).lower()
            raise typer.BadParameter(f"{error}; or give one of its models: {known}") from None
    for each in chosen:
        if markdown:
            typer.echo(f"{each.caption}\n\n{layout.as_markdown(each)}\n")
        else:
            print_full_width(layout.as_table(each))


@app.command(rich_help_panel=EVALUATE)
def sweep(
    suite: Annotated[str, typer.Argument(help=SWEEP_SUITE_HELP)] = POCKET,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUES",
            help="A setting and its values: beta=0,0.5,2 or keep=8,16. Repeat it for more settings.",
        ),
    ] = None,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="Try all values of the paper's ablations on LLaVA-1.5-7B, and show its results."),
    ] = False,
    grid: Annotated[
        bool, typer.Option("--grid", help="Try every combination of the values instead of one setting at a time.")
    ] = False,
    method: Annotated[
        str,
        typer.Option(metavar="METHOD", help="The method, optionally with a preset (eadp:published)."),
    ] = "eadp",
    keep: Annotated[
        str, typer.Option(metavar="BUDGET", help="How many visual tokens stay: a count (32) or a share (0.125).")
    ] = "0.0625",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar=SET_METAVAR, help="A setting that is the same in the whole sweep: mu=0.3. Can be repeated."
        ),
    ] = None,
    model: Annotated[str, typer.Option(metavar="MODEL", help=SUITE_MODEL_HELP)] = "",
    samples: Annotated[
        int | None, typer.Option(metavar="COUNT", help="Questions per benchmark. Default: all; for pocket 500.", min=1)
    ] = None,
    only: Annotated[str, typer.Option(metavar="BENCHMARKS", help=ONLY_HELP)] = "",
    hard: Annotated[bool, typer.Option("--hard", help=HARD_HELP)] = False,
    python: Annotated[str | None, typer.Option(metavar="PATH", help=PYTHON_HELP)] = None,
    batch: Annotated[int, typer.Option(metavar="COUNT", help="Prompts per batch in the harness.", min=1)] = 1,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help=OUT_HELP)] = Path("out/sweep"),
) -> None:
    """Try values of a method's settings and test which of them differ from the default.

    The first example tries five values of beta, then three of mu, with everything else at its default. With --grid it
    tries all fifteen combinations. Any setting of any method can be swept (`eadp methods` lists the methods), and also
    the budget (keep=8,16), the preset (preset=paper,published) and the positions of kept tokens
    (positions=keep,renumber).

    Each answer is saved as soon as it is known; repeat the command to continue an interrupted sweep. It writes
    sweep.json, sweep.md and a plot per benchmark.

    Example: eadp sweep --over beta=0,0.5,2,5,10 --over mu=0,0.5,1

    Example: eadp sweep paper-llava --only GQA --keep 64 --over q=0.1,0.3,0.5
    """
    from eadp.evaluate import sweep, sweep_report

    try:
        if paper and grid:
            raise ValueError("the paper changes one setting at a time: use --paper without --grid")
        values = (sweep.paper_values() if paper else {}) | sweep.parse_values(over or [])
        budget, options = _parse_single_budget(keep), parse_assignments(settings or [])
        plan = sweep.build_plan(method, budget, options, values, grid, hard)
        if suite == POCKET:
            results, failures = _sweep_pocket(plan, model or POCKET, samples or DEFAULT_QUESTIONS, out), []
        else:
            suite_result = _sweep_suite(plan, suite, model, samples, parse_names(only), python, batch, out)
            results, failures = sweep.collect_suite_results(plan, suite_result), suite_result.failures
        written = sweep_report.write(plan, results, out, paper)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    for benchmark, blocks in results.items():
        print_full_width(sweep_report.as_table(plan, benchmark, blocks, paper))
    for failure in failures:
        typer.echo(f"failed: {failure}")
    typer.echo("written: " + ", ".join(str(path) for path in written))
    if failures:
        raise typer.Exit(1)


def _sweep_pocket(plan: SweepPlan, model: str, samples: int, out: Path) -> dict[str, Blocks]:
    from rich.progress import Progress
    from transformers.utils.logging import disable_progress_bar

    from eadp.evaluate.sweep import run_on_pocket

    disable_progress_bar()  # the bar for loading weights: one bar is enough
    with Progress() as progress:
        task = progress.add_task(f"{len(plan.specs)} settings", total=len(plan.all_specs) * samples)
        return run_on_pocket(plan, samples, model, out, lambda answers: progress.advance(task, answers))


def _sweep_suite(
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

    suite = suites.load_suite(name)
    if not (model := model or suite.model):
        raise ValueError(f"{suite.name} has no default model: give one with --model")
    benchmarks, _ = suite.select_benchmarks(only, suites.has_judge())
    return run_with_progress(
        suites.SuitePlan(suite, model, plan.all_specs, benchmarks, out, python, {}, samples, batch)
    )


def _parse_single_budget(text: str) -> int | float:
    budgets = parse_budgets(text)
    if len(budgets) != 1:
        raise typer.BadParameter("a sweep has one --keep; to try several budgets: --over keep=8,16,32")
    return budgets[0]


@app.command(rich_help_panel=EVALUATE)
def compare(
    a: Annotated[
        str,
        typer.Argument(
            help="A folder of results or a results.json, optionally followed by words that select runs: FOLDER:WORDS."
        ),
    ],
    b: Annotated[str, typer.Argument(help="What to compare it with; :WORDS selects other runs of the same folder.")],
    common: Annotated[
        bool, typer.Option("--common", help="If the samples differ, compare those that both runs have.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the differences to this file, as JSON.")
    ] = None,
) -> None:
    """Test whether two runs differ significantly, with a paired bootstrap over the same samples.

    Significant means: at 95 %, without a correction for several comparisons. Runs on different samples are an error,
    unless --common is given. The command reads the results of `eadp eval` and `eadp sweep` and the samples that
    lmms-eval logs.

    Words select the runs that have all of them in their names. If they select several runs, each is paired with the one
    of the same name apart from these words, for example two methods at each budget.

    Example: eadp compare out/first out/second

    Example: eadp compare "out/pocket:eadp keep=0.125" ":topk keep=0.125"

    Example: eadp compare out/pocket:eadp :topk
    """
    from eadp.evaluate import compare

    try:
        differences = [compare.compare_runs(*pair, common=common) for pair in compare.find_pairs(a, b)]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    print_full_width(compare.as_table(differences))
    for each in differences:
        typer.echo(each.sentence)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        content = [{**asdict(each), "significant": each.significant} for each in differences]
        out.write_text(json.dumps(content, indent=1) + "\n")
        typer.echo(f"written: {out}")
