"""The list of suites that `eadp suites` prints."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table

from eadp.evaluate.suites.suite import PUBLISHED, SUITE_NAMES, Benchmark, load_suite
from eadp.utils.tables import NOTHING, format_markdown

HEADER = ("benchmark", "harness", "task", "split", "measure", "needs", "mind")
NEEDS = {
    "": NOTHING,
    "judge for some": "online judge for answers that rules cannot read",
    "judge": "online judge",
    "server": "submission server",
}
HARNESS_TITLES = {"lmms-eval": "lmms-eval", "vlmeval": "VLMEvalKit"}


def as_table() -> Table:
    """Build one table of all suites for the terminal."""
    table = Table("suite", *HEADER, box=box.SIMPLE_HEAD)
    for name in SUITE_NAMES:
        for row in _build_rows(name):
            table.add_row(name, *row)
        table.add_section()
    return table


def as_markdown() -> str:
    """Format one Markdown table per suite."""
    return "\n\n".join(f"**{name}**\n\n{format_markdown(HEADER, _build_rows(name))}" for name in SUITE_NAMES)


def _build_rows(name: str) -> Iterator[tuple[str, ...]]:
    for each in load_suite(name).benchmarks:
        yield (
            each.name,
            HARNESS_TITLES[each.harness],
            _format_tasks(each),
            each.split,
            each.measure,
            NEEDS[each.needs],
            _format_remarks(each),
        )


def _format_remarks(benchmark: Benchmark) -> str:
    """Join the remark, the settings of the authors' scripts, and whether the benchmark must be named to run."""
    scripts = [
        f"{method}:{PUBLISHED} has {name}={value} here"
        for method, settings in benchmark.published.items()
        for name, value in settings.items()
    ]
    named = [f"only with --only {benchmark.name}"] if benchmark.only_named else []
    return "; ".join([*filter(None, [benchmark.remark]), *scripts, *named]) or NOTHING


def _format_tasks(benchmark: Benchmark) -> str:
    first, *others = benchmark.tasks
    return first if not others else f"{first}, … ({len(benchmark.tasks)})"
