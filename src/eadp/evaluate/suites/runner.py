"""Runs a suite: every benchmark with every setting, on this machine or on a cluster. Finished cells are kept."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from eadp.evaluate.compare import percent_scale
from eadp.evaluate.journal import Journal, Record
from eadp.evaluate.loyalty import loyalty, mean_on_hard
from eadp.evaluate.suites import harness
from eadp.evaluate.suites.cell_run import define_measurement, run_cell
from eadp.evaluate.suites.harness import Cell
from eadp.evaluate.suites.plan import SuitePlan
from eadp.evaluate.suites.suite import Benchmark
from eadp.method_spec import ALL_TOKENS, MethodSpec

ProgressCallback = Callable[[Cell, int], None]
"""Called repeatedly with a running cell and its number of answers."""


@dataclass(frozen=True)
class CellOutcome:
    """How a cell ended: with a record, or with a sentence that says why it failed.

    Attributes:
        cell: The cell.
        record: Its record, if it succeeded.
        failure: Why it failed.
        host: The machine on which it ended.
        attempts: How often it was started, because the machine died before.
    """

    cell: Cell
    record: Record | None = None
    failure: str = ""
    host: str = ""
    attempts: int = 1


CellExecutor = Callable[[Sequence[Cell], ProgressCallback], Iterator[CellOutcome]]
"""Runs cells and yields the outcome of each when it ends, in any order."""


@dataclass(frozen=True)
class SuiteResult:
    """The result of running a suite.

    Attributes:
        plan: The plan that was run.
        records: The record of each cell that succeeded, by its key.
        failures: A sentence per cell that failed.
    """

    plan: SuitePlan
    records: dict[str, Record]
    failures: list[str]

    def value(self, spec: MethodSpec, benchmark: Benchmark) -> float | None:
        """Return the value of a benchmark with a setting, if there is one."""
        record = self.records.get(f"{spec.key}/{benchmark.name}")
        return None if record is None else record["value"]

    def loyalty(self, spec: MethodSpec, benchmarks: Sequence[Benchmark]) -> float | None:
        """Return the share of answers to these benchmarks that equal those of the unpruned model, if they are known."""
        ours, unpruned = (self._answers(each, benchmarks) for each in (spec, MethodSpec(ALL_TOKENS)))
        return loyalty(ours, unpruned)

    def hard_score(self, spec: MethodSpec, benchmark: Benchmark, downsampled: MethodSpec) -> tuple[float, int] | None:
        """Return the mean score of the samples that down-sampling does not answer right, in percent, and their number.

        Args:
            spec: The setting.
            benchmark: The benchmark.
            downsampled: `downsample` with the same budget.

        Returns:
            None if there are no such samples, or the harness does not record scores per sample.
        """
        ours, theirs = (self._scores(each, benchmark) for each in (spec, downsampled))
        found = mean_on_hard(ours, theirs)
        return None if found is None else (percent_scale(ours.values()) * found[0], found[1])

    def _answers(self, spec: MethodSpec, benchmarks: Sequence[Benchmark]) -> dict[tuple[str, str], str]:
        """The answer to each sample of the cells that succeeded."""
        return {
            (benchmark.name, str(each["key"])): each["answer"]
            for benchmark in benchmarks
            if (record := self.records.get(f"{spec.key}/{benchmark.name}")) is not None
            for each in Journal.read(self.plan.out / record["journal"])[1]
        }

    def _scores(self, spec: MethodSpec, benchmark: Benchmark) -> dict[str, float]:
        record = self.records.get(f"{spec.key}/{benchmark.name}")
        if record is None:
            return {}
        return {each["key"]: each["score"] for each in Journal.read((self.plan.out / record["journal"]).parent)[1]}


def prepare_local(plan: SuitePlan) -> CellExecutor:
    """Return what runs the cells of a plan on this machine, one after another.

    Raises:
        ValueError: If the interpreter lacks a harness, or interpreters are given for the nodes of a cluster.
    """
    if plan.node_pythons:
        raise ValueError(
            f"--python {next(iter(plan.node_pythons))}=… is for a node of a cluster: give --ray, or a path"
        )
    pythons = {name: harness.find_interpreter(name, plan.python) for name in plan.harnesses}

    def execute(cells: Sequence[Cell], on_progress: ProgressCallback) -> Iterator[CellOutcome]:
        for cell in cells:
            with closing(run_cell(cell, pythons[cell.benchmark.harness])) as run:
                try:
                    while True:
                        on_progress(cell, next(run))
                except StopIteration as end:
                    outcome = CellOutcome(cell, end.value, host=platform.node())
                except ValueError as error:
                    outcome = CellOutcome(cell, failure=str(error))
            yield outcome

    return execute


def run_suite(
    plan: SuitePlan,
    on_progress: ProgressCallback = lambda cell, answers: None,
    on_finished: Callable[[Cell], None] = lambda cell: None,
    prepare: Callable[[SuitePlan], CellExecutor] = prepare_local,
) -> SuiteResult:
    """Run a suite. Cells that are in the journal of `plan.out` are not run again.

    Args:
        plan: What to run.
        on_progress: Called repeatedly with a running cell and its number of answers.
        on_finished: Called with each cell when it is done or has failed.
        prepare: Checks where the plan is to run, and returns what runs its cells.

    Raises:
        ValueError: If an interpreter lacks its harness, a command cannot be built, or the folder has other results.
    """
    cells = plan.cells()
    for cell in cells:
        harness.build_command(cell, "python")
    execute = prepare(plan)
    failures: dict[str, str] = {}
    with Journal.open(plan.out, plan.journal_settings()) as journal:
        finished = [cell for cell in cells if cell.key in journal]
        for cell in finished:
            if journal[cell.key]["benchmark"] != define_measurement(cell.benchmark):
                raise ValueError(
                    f"{plan.out} has {cell.benchmark.name} as another suite measured it: give another folder"
                )
            on_finished(cell)
        for outcome in execute([cell for cell in cells if cell.key not in journal], on_progress):
            cell = outcome.cell
            if outcome.record is None:
                failures[cell.key] = f"{cell.spec} on {cell.benchmark.name}: {outcome.failure}"
            else:
                journal.add(cell.key, {**outcome.record, "host": outcome.host, "attempts": outcome.attempts})
            on_finished(cell)
        records = {cell.key: journal[cell.key] for cell in cells if cell.key in journal}
    return SuiteResult(plan, records, [failures[cell.key] for cell in cells if cell.key in failures])
