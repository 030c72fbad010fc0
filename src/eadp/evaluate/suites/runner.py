"""Runs a suite: every benchmark with every setting, each in its own harness process. Finished cells are kept."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from eadp.evaluate.compare import percent_scale
from eadp.evaluate.journal import Journal, Record
from eadp.evaluate.loyalty import loyalty, mean_on_hard
from eadp.evaluate.suites import harness
from eadp.evaluate.suites.harness import Cell
from eadp.evaluate.suites.plan import SuitePlan
from eadp.evaluate.suites.suite import Benchmark
from eadp.method_spec import ALL_TOKENS, MethodSpec
from eadp.utils.die_with_parent import die_with_parent

POLL_SECONDS = 0.5
"""How often the progress of a harness is checked."""
TERMINATION_SECONDS = 10
"""How long a terminated harness may take to end before it is killed. torchrun ends its ranks in this time."""
DESCRIPTIVE_FIELDS = ("only_named", "split", "measure", "needs", "remark")
"""Fields of a benchmark that do not affect its value."""

ProgressCallback = Callable[[Cell, int], None]


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


def run_suite(
    plan: SuitePlan,
    on_progress: ProgressCallback = lambda cell, answers: None,
    on_finished: Callable[[Cell], None] = lambda cell: None,
) -> SuiteResult:
    """Run a suite. Cells that are in the journal of `plan.out` are not run again.

    Args:
        plan: What to run.
        on_progress: Called repeatedly with the running cell and its number of answers.
        on_finished: Called with each cell when it is done or has failed.

    Raises:
        ValueError: If an interpreter lacks its harness, a command cannot be built, or the folder has other results.
    """
    harnesses = {benchmark.harness for benchmark in plan.benchmarks}
    pythons = {name: harness.find_interpreter(name, plan.python) for name in harnesses}
    cells, failures = plan.cells(), []
    commands = {cell.key: harness.build_command(cell, pythons[cell.benchmark.harness]) for cell in cells}
    with Journal.open(plan.out, plan.journal_settings()) as journal:
        for cell in cells:
            if cell.key not in journal:
                try:
                    _run_harness(cell, commands[cell.key], on_progress)
                    record = _build_record(cell)
                    _save_scores(cell)
                    journal.add(cell.key, record)
                except ValueError as error:
                    failures.append(f"{cell.spec} on {cell.benchmark.name}: {error}")
            elif journal[cell.key]["benchmark"] != _define_measurement(cell.benchmark):
                raise ValueError(
                    f"{plan.out} has {cell.benchmark.name} as another suite measured it: give another folder"
                )
            on_finished(cell)
        records = {cell.key: journal[cell.key] for cell in cells if cell.key in journal}
    return SuiteResult(plan, records, failures)


def _run_harness(cell: Cell, command: list[str], on_progress: ProgressCallback) -> None:
    """Run a harness to its end. It continues with the answers in its journal."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    log = cell.folder / "log.txt"
    with open(log, "ab") as file:
        process = subprocess.Popen(
            [*die_with_parent(signal.SIGKILL), *command],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=harness.build_environment(),
        )
        try:
            while not _wait(process, POLL_SECONDS):
                on_progress(cell, _count_answers(cell.journal))
        finally:
            process.terminate()
            if not _wait(process, TERMINATION_SECONDS):
                process.kill()
                process.wait()
    if process.returncode:
        raise ValueError(
            f"{cell.benchmark.harness} ended with {process.returncode}; {log} ends with: {_read_last_lines(log)}"
        )


def _wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for a process to end and return whether it has."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _build_record(cell: Cell) -> Record:
    _, answers = Journal.read(cell.journal)
    if not answers:
        raise ValueError(f"{cell.benchmark.harness} ended without an answer; see {cell.folder / 'log.txt'}")
    figures = harness.read_figures(cell)
    return {
        "method": cell.spec.method,
        "keep": cell.spec.keep,
        "options": cell.spec.options,
        "scripted": cell.benchmark.script_settings(cell.spec),
        "benchmark": _define_measurement(cell.benchmark),
        "value": None if cell.benchmark.needs == "server" else cell.benchmark.value(figures),
        "figures": figures,
        "answers": len(answers),
        **{name: fmean(each[name] for each in answers) for name in ("tokens", "sent", "layer_mean")},
        "seconds": sum(each["prepare_seconds"] + each["generate_seconds"] for each in answers),
        "journal": str(cell.journal.relative_to(cell.folder.parents[1])),
    }


def _save_scores(cell: Cell) -> None:
    """Save the score of each sample in the cell's folder, for `eadp compare`."""
    settings = {"model": cell.model, "benchmark": cell.benchmark.name, **cell.settings()}
    with Journal.open(cell.folder, settings) as journal:
        scores = harness.read_scores(cell).items()
        journal.extend(
            (key, {"task": key.rpartition("/")[0], "score": score}) for key, score in scores if key not in journal
        )


def _define_measurement(benchmark: Benchmark) -> Record:
    """Return the fields of a benchmark that define its value, as a journal stores them."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(benchmark).items()
        if name not in DESCRIPTIVE_FIELDS
    }


def _count_answers(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("samples*.jsonl"))


def _read_last_lines(log: Path) -> str:
    """Return the end of a log. It takes several lines because one message is often broken into several."""
    lines = [line.strip() for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    return " ".join(lines[-3:])[-300:] or "nothing"
