"""The commands `eadp eval` and `eadp suites`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from eadp.cli.app import (
    EVALUATE,
    METHODS_HELP,
    SET_METAVAR,
    app,
    get_console,
    parse_assignments,
    parse_budgets,
    parse_names,
    print_full_width,
)
from eadp.cli.offline import OfflineRun, run_drawn, run_photo
from eadp.pocket.names import OFFLINE, PHOTO

if TYPE_CHECKING:
    from eadp.evaluate.suites import Benchmark, SuitePlan, SuiteResult
    from eadp.evaluate.suites.cluster import RayRunner
    from eadp.evaluate.suites.harness import Cell
    from eadp.paper import PaperTable

AUTO = "auto"
"""The address of the Ray cluster that this machine belongs to."""

SUITE_HELP = (
    "The suite: pocket, things, clips, smol, photo, paper-llava, paper-qwen, paper-video, or the path of a suite in "
    "JSON."
)
SWEEP_SUITE_HELP = "The suite: pocket, paper-llava, paper-qwen, paper-video, or the path of a suite in JSON."
SUITE_MODEL_HELP = (
    "A model that runs offline, the folder of a checkpoint, or its name on the Hugging Face hub. Default: the model of "
    "the suite."
)
ONLY_HELP = "Run only these benchmarks of the suite, separated by commas. `eadp suites` lists them."
PYTHON_HELP = (
    "Python interpreter of the environment in which the harness is installed. Default: this one. With --ray, a path on "
    "every node, or NODE=PATH for one node; can be repeated."
)
RAY_HELP = (
    "Run the benchmarks with their settings as tasks of a Ray cluster: HOST:PORT of its head node; without a value, "
    "the cluster that this machine belongs to."
)
GPUS_HELP = (
    "With --ray: GPUs of a task, a whole number, or a share of one (0.5) if tasks share it. Default: one per rank, or "
    "0 if the cluster has none."
)
RETRIES_HELP = "With --ray: how often a task is started again after its worker or its node died."
DRY_RUN_HELP = "Only print what would run, on how many GPUs, and for how long at the measured seconds per sample."
MEASURED_HELP = (
    "With --dry-run: a folder of results whose seconds per sample are used, such as a trial with --samples 20. "
    "Default: the folder of this run, as far as it has results."
)
HARD_HELP = (
    "Also show the results on hard samples only: those that `downsample`, which is run too, does not answer right with "
    "the same budget."
)
STAMPS_HELP = "For photo: the folder usr/share/tuxpaint/stamps of Debian's tuxpaint-stamps-default, if it is elsewhere."
OUT_HELP = "Folder for the results. A folder that already has results is continued."


class RayAddressCommand(TyperCommand):
    """A command whose option --ray may be given without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, complete_ray_address(args))


@app.command("eval", rich_help_panel=EVALUATE, cls=RayAddressCommand)
def evaluate(
    suite: Annotated[str, typer.Argument(help=SUITE_HELP)] = "",
    suite_option: Annotated[
        str, typer.Option("--suite", metavar="SUITE", help="The suite, as an option instead of an argument.")
    ] = "",
    model: Annotated[str, typer.Option(metavar="MODEL", help=SUITE_MODEL_HELP)] = "",
    methods: Annotated[str, typer.Option(metavar="METHODS", help=METHODS_HELP)] = "eadp",
    keep: Annotated[
        str,
        typer.Option(
            metavar="BUDGETS",
            help="How many visual tokens stay: counts (32) or shares (0.125), separated by commas. Default: the "
            "budgets of the paper; for models that run offline 0.125,0.0625.",
        ),
    ] = "",
    samples: Annotated[
        int | None,
        typer.Option(metavar="COUNT", help="Questions per benchmark. Default: all; for drawn scenes 2000.", min=1),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar=SET_METAVAR,
            help="A setting of all methods (mu=0.3) or of one method (eadp.mu=0.3), or an option of `attach`: "
            "positions, newlines, unpad, budget_over. Can be repeated.",
        ),
    ] = None,
    only: Annotated[str, typer.Option(metavar="BENCHMARKS", help=ONLY_HELP)] = "",
    pythons: Annotated[list[str] | None, typer.Option("--python", metavar="PATH", help=PYTHON_HELP)] = None,
    batch: Annotated[int, typer.Option(metavar="COUNT", help="Prompts per batch in lmms-eval.", min=1)] = 1,
    ranks: Annotated[
        int, typer.Option(metavar="COUNT", help="Processes that share each lmms-eval task, through torchrun.", min=1)
    ] = 1,
    arguments: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            metavar=SET_METAVAR,
            help="A further argument of the model in the harness: resolution=1008, square=pad, question=harness, … "
            "NAME=null removes an argument that the suite sets. Can be repeated.",
        ),
    ] = None,
    beside: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="Show the paper's results of this model next to ours. Default: those of the evaluated model.",
        ),
    ] = "",
    hard: Annotated[bool, typer.Option("--hard", help=HARD_HELP)] = False,
    stamps: Annotated[Path | None, typer.Option(metavar="FOLDER", help=STAMPS_HELP)] = None,
    ray: Annotated[str | None, typer.Option(metavar="[ADDRESS]", help=RAY_HELP)] = None,
    gpus_per_task: Annotated[float | None, typer.Option(metavar="GPUS", help=GPUS_HELP, min=0)] = None,
    retries: Annotated[int, typer.Option(metavar="COUNT", help=RETRIES_HELP, min=0)] = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN_HELP)] = False,
    measured: Annotated[Path | None, typer.Option(metavar="FOLDER", help=MEASURED_HELP)] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help=OUT_HELP)] = None,
) -> None:
    """Measure accuracy with and without pruning, for several methods and budgets on the same questions.

    The suites `pocket`, `things`, `smol` and `clips` ask the model of that name about drawn scenes or clips and need no
    download. The suite `photo` asks about photographs of three packages, and says how to get what is missing. The other
    suites run the benchmarks of the paper with lmms-eval or VLMEvalKit and print the paper's results next to ours. They
    preprocess images and questions as EADP's release does; with `--methods eadp:published` they also use its settings,
    including its value of mu for each benchmark.

    Beside accuracy, tables show loyalty: the share of answers that equal those of the unpruned model, right or wrong.

    Each answer is saved as soon as it is known. Repeat the command to continue an interrupted run, or to add methods,
    budgets and benchmarks to a folder.

    With `--ray` the benchmarks run in parallel on a cluster. Tasks whose node died are started again and continue with
    the answers that are saved; the table is that of a single machine. `--dry-run` first tells what would run.

    Example: eadp eval pocket --methods eadp,topk --keep 32,16 --samples 200

    Example: eadp eval clips --methods eadp,vidcom2,evs --keep 0.25,0.0625

    Example: eadp eval photo --methods zoo --keep 64

    Example: eadp eval paper-llava --methods eadp:published --keep 64 --only GQA,POPE

    Example: eadp eval paper-llava --methods eadp,cdpruner --ray 10.0.0.1:6379 --dry-run
    """
    if bool(suite) == bool(suite_option):
        raise typer.BadParameter("give one suite, as in `eadp eval pocket` or `eadp eval --suite pocket`")
    suite = suite or suite_option
    try:
        if stamps is not None and suite != PHOTO:
            raise ValueError("--stamps is for the suite photo: leave it out")
        if suite in OFFLINE:
            harness_only: dict[str, Any] = {"--only": only, "--python": pythons, "--arg": arguments, "--beside": beside}
            harness_only |= {"--batch": batch > 1, "--ranks": ranks > 1, "--ray": ray, "--dry-run": dry_run}
            if misplaced := [option for option, value in harness_only.items() if value]:
                raise ValueError(f"{suite} runs without a harness: leave out {', '.join(misplaced)}")
            options = parse_method_options(settings or [])
            setting = OfflineRun(
                model or suite, parse_names(methods), parse_budgets(keep or "0.125,0.0625"), options, hard, samples
            )
            out = out or Path("out", suite)
            run_photo(setting, out, stamps) if suite == PHOTO else run_drawn(setting, out)
            return
        from eadp.evaluate import suites

        loaded = suites.load_suite(suite)
        model = model or loaded.model
        if not model:
            raise ValueError(f"{loaded.name} has no default model: give one with --model")
        paper_table = suites.find_paper_table(beside or model)
        if beside and paper_table is None:
            raise ValueError(f"the paper has no results of {beside!r}; `eadp paper` shows those that it has")
        benchmarks, skipped = loaded.select_benchmarks(parse_names(only), suites.has_judge())
        names = [*parse_names(methods), *(["downsample"] if hard else [])]
        specs = suites.plan_specs(
            list(dict.fromkeys(names)), parse_budgets(keep), parse_method_options(settings or []), model, paper_table
        )
        out = out or Path("out") / loaded.name / Path(model).name
        python, node_pythons = parse_pythons(pythons or [])
        plan = suites.SuitePlan(
            loaded,
            model,
            specs,
            benchmarks,
            out,
            python,
            parse_assignments(arguments or []),
            samples,
            batch,
            ranks,
            node_pythons=node_pythons,
        )
        if ray is None and gpus_per_task is not None:
            raise ValueError(
                "--gpus-per-task is for the tasks of a cluster: give --ray; here, each rank has its own GPU"
            )
        if measured is not None and not dry_run:
            raise ValueError("--measured is for the estimate of --dry-run: give both")
        with ExitStack() as stack:
            cluster = None if ray is None else stack.enter_context(_connect(ray, gpus_per_task, retries))
            if dry_run:
                _print_estimate(plan, cluster, measured)
            else:
                _run_suite(plan, cluster, skipped, paper_table, hard)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def _connect(address: str, gpus_per_task: float | None, retries: int) -> AbstractContextManager[RayRunner]:
    try:
        from eadp.evaluate.suites import cluster
    except ModuleNotFoundError as missing:
        if missing.name != "ray":
            raise
        raise typer.BadParameter("Ray is not installed here: pip install 'eadp[ray]'") from missing
    return cluster.connect(address, gpus_per_task, retries)


def _print_estimate(plan: SuitePlan, cluster: RayRunner | None, measured: Path | None) -> None:
    from eadp.evaluate.suites.estimate import as_table, describe, estimate_run

    gpus = plan.ranks if cluster is None else cluster.gpus_per_task(plan.ranks)
    at_once = 1 if cluster is None else cluster.tasks_at_once(plan.ranks)
    estimate = estimate_run(plan, gpus, at_once, measured)
    print_full_width(as_table(estimate))
    for sentence in describe(estimate):
        get_console().print(sentence, markup=False, highlight=False)


def _run_suite(
    plan: SuitePlan,
    cluster: RayRunner | None,
    skipped: Sequence[Benchmark],
    paper_table: PaperTable | None,
    hard: bool,
) -> None:
    from eadp.evaluate.suites.table import as_hard_table, as_table, write

    result = run_with_progress(plan, cluster)
    written, console = write(result, paper_table, hard), get_console()
    print_full_width(as_table(result, paper_table))
    if hard:
        print_full_width(as_hard_table(result))
    for benchmark in skipped:
        need = "an online judge (OPENAI_API_KEY)" if benchmark.needs == "judge" else "a server that scores submissions"
        console.print(
            f"left out: {benchmark.name}, which needs {need}; --only {benchmark.name} runs it", highlight=False
        )
    for failure in result.failures:
        console.print(f"failed: {failure}", markup=False, highlight=False)
    console.print("written: " + ", ".join(str(path) for path in written))
    if result.failures:
        raise typer.Exit(1)


def run_with_progress(plan: SuitePlan, cluster: RayRunner | None = None) -> SuiteResult:
    """Run a suite on this machine, or on a cluster, and show one progress bar over all cells."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from eadp.evaluate.suites import run_suite
    from eadp.evaluate.suites.runner import prepare_local

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        bar = progress.add_task(plan.suite.name, total=len(plan.cells()))
        answers_by_cell: dict[str, int] = {}

        def show() -> None:
            names, answers = list(answers_by_cell), sum(answers_by_cell.values())
            what = names[0] if len(names) == 1 else f"{len(names)} at once"
            progress.update(bar, description=f"{what}: {answers:,} answers" if names else f"{plan.suite.name}: waiting")

        def update(cell: Cell, answers: int) -> None:
            answers_by_cell[f"{cell.spec} on {cell.benchmark.name}"] = answers
            show()

        def finish(cell: Cell) -> None:
            answers_by_cell.pop(f"{cell.spec} on {cell.benchmark.name}", None)
            progress.advance(bar)
            show()

        return run_suite(plan, update, finish, prepare_local if cluster is None else cluster.prepare)


@app.command(rich_help_panel=EVALUATE)
def suites(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, to paste into a page.")] = False,
) -> None:
    """List the suites: the harness and task of each benchmark, its split, its measure, and what it needs.

    Example: eadp suites
    """
    from eadp.evaluate.suites.listing import as_markdown, as_table

    if markdown:
        typer.echo(as_markdown())
    else:
        get_console().print(as_table())


def parse_method_options(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Group settings by method: mu=0.3, eadp.q=0.2 gives {"": {"mu": 0.3}, "eadp": {"q": 0.2}}; "" is all methods."""
    by_method: dict[str, dict[str, Any]] = {}
    for name, value in parse_assignments(texts).items():
        method, _, option = name.rpartition(".")
        by_method.setdefault(method, {})[option] = value
    return by_method


def parse_pythons(texts: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """Parse interpreters: "PATH" is the one of all machines, "NODE=PATH" that of a node of a cluster."""
    path, by_node = None, {}
    for text in texts:
        node, equals, node_path = text.partition("=")
        if equals and "/" not in node:
            by_node[node] = node_path
        elif path is not None:
            raise ValueError(f"--python takes one path for all machines, got {path} and {text}")
        else:
            path = text
    return path, by_node


def complete_ray_address(arguments: Sequence[str]) -> list[str]:
    """Insert the address "auto" after a --ray that is not followed by an address, which has a colon or is "auto"."""
    completed = []
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        completed.append(argument)
        if argument == "--ray" and following != AUTO and (":" not in following or following.startswith("-")):
            completed.append(AUTO)
    return completed
