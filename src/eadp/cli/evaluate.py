"""Evaluate: accuracy with and without pruning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eadp.cli.app import EVALUATE, app, assignments, budgets, console, names, print_whole

if TYPE_CHECKING:
    from eadp.evaluate.suites import Benchmark, SuitePlan, SuiteResult
    from eadp.paper import PaperTable

POCKET = "pocket"
QUESTIONS = 2000


@app.command("eval", rich_help_panel=EVALUATE)
def evaluate(
    suite: Annotated[
        str, typer.Argument(help="pocket, paper-llava, paper-qwen, paper-video, or the path of a suite's .json.")
    ] = "",
    by_option: Annotated[str, typer.Option("--suite", help="The same, as an option.")] = "",
    model: Annotated[
        str, typer.Option(help="pocket, the folder of a checkpoint, or its name on the hub; default: the suite's.")
    ] = "",
    methods: Annotated[
        str,
        typer.Option(help="Methods, with commas; eadp:published and eadp:paper are presets; see `eadp methods`."),
    ] = "eadp",
    keep: Annotated[
        str, typer.Option(help="Budgets: counts (32) or shares (0.125), with commas; default: the paper's.")
    ] = "",
    samples: Annotated[
        int | None, typer.Option(help="How many questions of each benchmark; default: all, of pocket 2000.", min=1)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="An option of the methods, mu=0.3, or of one, eadp.preset=published; where attach puts tokens too: "
            "positions, newlines, unpad, budget_over. Can be repeated.",
        ),
    ] = None,
    only: Annotated[str, typer.Option(help="These benchmarks of the suite, with commas; see `eadp suites`.")] = "",
    python: Annotated[
        str | None, typer.Option(help="Interpreter of the environment that has the harness; default: this one.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Prompts that lmms-eval's model answers together.", min=1)] = 1,
    ranks: Annotated[int, typer.Option(help="Processes that share a task of lmms-eval, by torchrun.", min=1)] = 1,
    arguments: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            help="What a harness's model is given besides: resolution=1008, square=pad or stretch, question=released "
            "or harness, …; =null takes away one of the suite's. Can be repeated.",
        ),
    ] = None,
    beside: Annotated[
        str, typer.Option(help="Whose figures of the paper stand beside ours; default: those of the model's name.")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Folder of the results. One that has some is gone on with.")] = None,
) -> None:
    """Measure accuracy with and without pruning, all methods and budgets side by side on the same questions.

    `eadp eval pocket` asks the pocket model about drawn scenes. The other suites run the paper's benchmarks by
    lmms-eval or VLMEvalKit and print the paper's figures beside. They show images and cut questions as EADP's release
    does; `--methods eadp:published` runs the release's settings, with its μ for each benchmark.

    Every answer is on the disk as soon as it is known: a killed run goes on where it was, and more methods, budgets
    or benchmarks are added to what the folder has.
    """
    name = suite or by_option
    if bool(suite) == bool(by_option):
        raise typer.BadParameter("give one suite, as in `eadp eval pocket` or `eadp eval --suite pocket`")
    try:
        if name == POCKET:
            given: dict[str, Any] = {"--only": only, "--python": python, "--arg": arguments, "--beside": beside}
            given |= {"--batch": batch > 1, "--ranks": ranks > 1}
            if strange := [option for option, value in given.items() if value]:
                raise ValueError(f"{', '.join(strange)} is for suites that a harness runs, not for pocket")
            _pocket(model or POCKET, methods, keep, samples or QUESTIONS, settings or [], out)
            return
        from eadp.evaluate import suites

        suite_ = suites.load(name)
        model = model or suite_.model
        if not model:
            raise ValueError(f"{suite_.name} has no model of its own: give one with --model")
        paper = suites.paper_of(beside or model)
        if beside and paper is None:
            raise ValueError(f"the paper has no figures of {beside!r}; see `eadp paper`")
        benchmarks, left = suite_.choose(names(only), suites.judge())
        chosen = suites.plan_specs(names(methods), budgets(keep), options(settings or []), model, paper)
        out = out or Path("out") / suite_.name / Path(model).name
        more = assignments(arguments or [])
        _suite(
            suites.SuitePlan(suite_, model, chosen, benchmarks, out, python, more, samples, batch, ranks), left, paper
        )
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def _pocket(model: str, methods: str, keep: str, samples: int, settings: list[str], out: Path | None) -> None:
    from rich.progress import Progress
    from transformers.utils.logging import disable_progress_bar

    from eadp.evaluate import compare, pocket_benchmark, pocket_report
    from eadp.evaluate.journal import Journal
    from eadp.method_spec import ALL_TOKENS, BLIND, MethodSpec, build_specs

    disable_progress_bar()  # that of loading weights: one bar is enough
    out = out or Path("out/pocket")
    chosen = [MethodSpec(ALL_TOKENS), MethodSpec(BLIND)]
    chosen += build_specs(names(methods), budgets(keep or "0.125,0.0625"), options(settings))
    chosen = list({spec.key: spec for spec in chosen}.values())
    with Journal.open(out, pocket_benchmark.identity(model)) as journal, Progress() as progress:
        task = progress.add_task(f"{len(chosen)} settings", total=len(chosen) * samples)
        found = pocket_benchmark.evaluate(
            chosen, samples, progress=lambda done: progress.advance(task, done), model=model, journal=journal
        )
        written = pocket_report.write(found, out)
    print_whole(pocket_report.as_table(found))
    if differences := compare.against(found.outcomes):
        print_whole(compare.as_table(differences))
    console().print("written: " + ", ".join(str(path) for path in written))


def _suite(plan: SuitePlan, left: Sequence[Benchmark], paper: PaperTable | None) -> None:
    from eadp.evaluate.suites.table import as_table, write

    ran = with_progress(plan)
    written, wide = write(ran, paper), console()
    print_whole(as_table(ran, paper))
    for each in left:
        why = "an online judge (OPENAI_API_KEY)" if each.needs == "judge" else "a server that scores what is sent in"
        wide.print(f"left out: {each.name}, which needs {why}; --only {each.name} runs it", highlight=False)
    for failure in ran.failures:
        wide.print(f"failed: {failure}", markup=False, highlight=False)
    wide.print("written: " + ", ".join(str(path) for path in written))
    if ran.failures:
        raise typer.Exit(1)


def with_progress(plan: SuitePlan) -> SuiteResult:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from eadp.evaluate.suites import run

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task(plan.suite.name, total=len(plan.cells()))
        return run(
            plan,
            watch=lambda cell, answers: progress.update(
                task, description=f"{cell.spec} on {cell.benchmark.name}: {answers:,} answers"
            ),
            done=lambda cell: progress.advance(task),
        )


@app.command(rich_help_panel=EVALUATE)
def suites(
    markdown: Annotated[bool, typer.Option("--markdown", help="As Markdown, to paste into a page.")] = False,
) -> None:
    """List the suites: which task of which harness measures a benchmark of the paper, and what that needs."""
    from eadp.evaluate.suites.listing import as_markdown, as_table

    if markdown:
        typer.echo(as_markdown())
    else:
        console().print(as_table())


def options(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """mu=0.3, eadp.q=0.2 → {"": {"mu": 0.3}, "eadp": {"q": 0.2}}: options of all methods and of one."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in assignments(texts).items():
        method, _, option = name.rpartition(".")
        found.setdefault(method, {})[option] = value
    return found
