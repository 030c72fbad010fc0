"""The suites as a table: benchmark, harness, task, split, measure, what is needed."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table

from eadp.evaluate.suites.suite import NAMES, PUBLISHED, Benchmark, load
from eadp.utils.tables import NOTHING, format_markdown

HEAD = ("benchmark", "harness", "task", "split", "measure", "needs", "mind")
NEEDS = {
    "": NOTHING,
    "judge for some": "online judge for answers that rules cannot read",
    "judge": "online judge",
    "server": "submission server",
}
TITLES = {"lmms-eval": "lmms-eval", "vlmeval": "VLMEvalKit"}


def as_table() -> Table:
    table = Table("suite", *HEAD, box=box.SIMPLE_HEAD)
    for name in NAMES:
        for line in _lines(name):
            table.add_row(name, *line)
        table.add_section()
    return table


def as_markdown() -> str:
    parts = []
    for name in NAMES:
        parts.append(f"**{name}**\n\n{format_markdown(HEAD, _lines(name))}")
    return "\n\n".join(parts)


def _lines(name: str) -> Iterator[tuple[str, ...]]:
    for each in load(name).benchmarks:
        yield each.name, TITLES[each.harness], _tasks(each), each.split, each.measure, NEEDS[each.needs], _mind(each)


def _mind(benchmark: Benchmark) -> str:
    """What to know of it: the remark, what scripts set, and whether it has to be asked for."""
    scripted = [
        f"{method}:{PUBLISHED} has {name}={value} here"
        for method, changed in benchmark.published.items()
        for name, value in changed.items()
    ]
    named = [f"only with --only {benchmark.name}"] if benchmark.only_named else []
    return "; ".join([*filter(None, [benchmark.remark]), *scripted, *named]) or NOTHING


def _tasks(benchmark: Benchmark) -> str:
    first, *others = benchmark.tasks
    return first if not others else f"{first}, … ({len(benchmark.tasks)})"
