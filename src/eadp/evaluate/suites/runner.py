"""Runs a suite: every benchmark under every setting, each by its harness in a process; what is done is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from eadp.evaluate.journal import Journal, Record
from eadp.evaluate.suites import die_with_parent, harness
from eadp.evaluate.suites.harness import Cell
from eadp.evaluate.suites.plan import SuitePlan
from eadp.evaluate.suites.suite import Benchmark
from eadp.method_spec import MethodSpec

SECONDS = 0.5
"""Between two looks at what a harness has answered."""
PATIENCE = 10
"""Seconds in which a harness that is told to end has to; torchrun ends its ranks in them."""

ProgressCallback = Callable[[Cell, int], None]


@dataclass(frozen=True)
class SuiteResult:
    """found: a record for every cell that has a value, by its key. failures: a sentence for every one that has not."""

    plan: SuitePlan
    found: dict[str, Record]
    failures: list[str]

    def value(self, spec: MethodSpec, benchmark: Benchmark) -> float | None:
        record = self.found.get(f"{spec.key}/{benchmark.name}")
        return None if record is None else record["value"]


def run(
    plan: SuitePlan,
    watch: ProgressCallback = lambda cell, answers: None,
    done: Callable[[Cell], None] = lambda cell: None,
) -> SuiteResult:
    """watch: told now and then how many answers the running cell has. done: told of every cell when it is over."""
    pythons = {name: harness.interpreter(name, plan.python) for name in {each.harness for each in plan.benchmarks}}
    cells, failures = plan.cells(), []
    commands = {cell.key: harness.command(cell, pythons[cell.benchmark.harness]) for cell in cells}
    with Journal.open(plan.out, plan.identity()) as journal:
        for cell in cells:
            if cell.key not in journal:
                try:
                    _start(cell, commands[cell.key], watch)
                    record = _record(cell)
                    _keep_scores(cell)
                    journal.add(cell.key, record)
                except ValueError as error:
                    failures.append(f"{cell.spec} on {cell.benchmark.name}: {error}")
            elif journal[cell.key]["benchmark"] != _plain(cell.benchmark):
                raise ValueError(
                    f"{plan.out} has {cell.benchmark.name} as another suite measured it: give another folder"
                )
            done(cell)
        found = {cell.key: journal[cell.key] for cell in cells if cell.key in journal}
    return SuiteResult(plan, found, failures)


def _start(cell: Cell, command: list[str], watch: ProgressCallback) -> None:
    """Run the harness to its end. It goes on with the answers that its journal has."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    log = cell.folder / "log.txt"
    with open(log, "ab") as file:
        process = subprocess.Popen(
            [*_die_with_parent(), *command],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=harness.environment(),
        )
        try:
            while not _ended(process, SECONDS):
                watch(cell, _answers(cell.journal))
        finally:
            process.terminate()
            if not _ended(process, PATIENCE):
                process.kill()
                process.wait()
    if process.returncode:
        raise ValueError(f"{cell.benchmark.harness} ended with {process.returncode}; {log} ends with: {_end(log)}")


def _die_with_parent() -> list[str]:
    """In front of a command: a kill of ours is one of it."""
    return [sys.executable, "-I", die_with_parent.__file__, str(os.getpid())] if sys.platform == "linux" else []


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _record(cell: Cell) -> Record:
    _, answers = Journal.read(cell.journal)
    if not answers:
        raise ValueError(f"{cell.benchmark.harness} ended without an answer; see {cell.folder / 'log.txt'}")
    measured = harness.figures(cell)
    return {
        "method": cell.spec.method,
        "keep": cell.spec.keep,
        "options": cell.spec.options,
        "scripted": cell.benchmark.scripted(cell.spec),
        "benchmark": _plain(cell.benchmark),
        "value": None if cell.benchmark.needs == "server" else cell.benchmark.value(measured),
        "figures": measured,
        "answers": len(answers),
        **{name: fmean(each[name] for each in answers) for name in ("tokens", "sent", "layer_mean")},
        "seconds": sum(each["prepare_seconds"] + each["generate_seconds"] for each in answers),
        "journal": str(cell.journal.relative_to(cell.folder.parents[1])),
    }


def _keep_scores(cell: Cell) -> None:
    """Sample by sample in the cell's own folder, for `eadp compare`."""
    about = {"model": cell.model, "benchmark": cell.benchmark.name, **cell.settings()}
    with Journal.open(cell.folder, about) as journal:
        found = harness.scores(cell).items()
        journal.extend(
            (key, {"task": key.rpartition("/")[0], "score": score}) for key, score in found if key not in journal
        )


def _plain(benchmark: Benchmark) -> Record:
    """As a journal gives it back; what is only said about a benchmark may change."""
    said = asdict(benchmark)
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in said.items()
        if name not in ("only_named", "split", "measure", "needs", "remark")
    }


def _answers(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("samples*.jsonl"))


def _end(log: Path) -> str:
    """What it last said: the last lines, as one is often broken into several."""
    lines = [line.strip() for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    return " ".join(lines[-3:])[-300:] or "nothing"
