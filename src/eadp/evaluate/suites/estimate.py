"""What a run of a suite would do: its tasks, its GPUs, and its time at the measured seconds per sample."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich import box
from rich.table import Table

from eadp.evaluate.journal import MANIFEST, Journal, Record
from eadp.evaluate.suites.harness import Cell
from eadp.evaluate.suites.plan import SuitePlan
from eadp.evaluate.suites.suite import Benchmark
from eadp.utils.tables import NOTHING


@dataclass(frozen=True)
class CellEstimate:
    """What is left of a cell.

    Attributes:
        cell: The cell.
        done: Whether it is in the journal of the suite.
        left: The number of samples without an answer; None if the size of the benchmark is not known.
        seconds_per_sample: The measured seconds per sample; None if nothing comparable was measured.
    """

    cell: Cell
    done: bool
    left: int | None
    seconds_per_sample: float | None

    @property
    def seconds(self) -> float | None:
        """The estimated time of the cell, which its ranks share; None if it cannot be estimated."""
        if self.done:
            return 0.0
        if self.left is None or self.seconds_per_sample is None:
            return None
        return self.left * self.seconds_per_sample / self.cell.ranks


@dataclass(frozen=True)
class RunEstimate:
    """What is left of a suite's run.

    Attributes:
        cells: The estimates of all cells, in the order of the plan.
        gpus_per_task: The GPUs of a task.
        tasks_at_once: How many tasks run at the same time.
        measured: The folder whose times were used.
    """

    cells: Sequence[CellEstimate]
    gpus_per_task: float
    tasks_at_once: int
    measured: Path

    @property
    def left(self) -> list[CellEstimate]:
        """The cells that have to run."""
        return [each for each in self.cells if not each.done]

    @property
    def unknown(self) -> list[CellEstimate]:
        """The cells that have to run, but whose time is not known."""
        return [each for each in self.left if each.seconds is None]

    @property
    def busy_seconds(self) -> float:
        """The time of all tasks together, without the unknown ones."""
        return sum(each.seconds for each in self.left if each.seconds is not None)

    @property
    def wall_seconds(self) -> float:
        """The time until the last task ends if they start in order, each as soon as there is room for it."""
        ends = [0.0] * self.tasks_at_once
        for each in self.left:
            heapq.heapreplace(ends, ends[0] + (each.seconds or 0))
        return max(ends)


def estimate_run(
    plan: SuitePlan, gpus_per_task: float, tasks_at_once: int, measured: Path | None = None
) -> RunEstimate:
    """Estimate what is left of a run. Nothing is started, and no file is written.

    Args:
        plan: The run.
        gpus_per_task: The GPUs of a task.
        tasks_at_once: How many tasks run at the same time.
        measured: A folder of results of the same model, such as a trial with few samples; None for the folder of the
            plan, as far as it has results.

    Raises:
        ValueError: If a folder has results of another model, or none.
    """
    source = plan.out if measured is None else measured
    manifest, records = _read(source, plan.model, required=measured is not None)
    _, finished = (manifest, records) if source == plan.out else _read(plan.out, plan.model, required=False)
    done = {record["key"] for record in finished}
    whole = records if manifest.get("settings", {}).get("samples") is None else []
    sizes = {record["benchmark"]["name"]: record["answers"] for record in [*whole, *finished]}
    times = _MeasuredTimes(records)
    estimates = []
    for cell in plan.cells():
        answers = _read_answers(cell.journal)
        total = _count_samples(cell.benchmark, plan.samples, sizes.get(cell.benchmark.name))
        estimates.append(
            CellEstimate(
                cell,
                cell.key in done,
                None if total is None else max(0, total - len(answers)),
                _mean_time(answers) or times.find(cell),
            )
        )
    return RunEstimate(estimates, gpus_per_task, tasks_at_once, source)


def as_table(estimate: RunEstimate) -> Table:
    """Build a table of the benchmarks: how many settings are left, their samples, and their time."""
    table = Table("benchmark", "harness", box=box.SIMPLE_HEAD)
    for title in ("tasks left", "samples per task", "s per sample", "time of all tasks"):
        table.add_column(title, justify="right")
    by_benchmark: dict[str, list[CellEstimate]] = defaultdict(list)
    for each in estimate.cells:
        by_benchmark[each.cell.benchmark.name].append(each)
    for name, cells in by_benchmark.items():
        left = [each for each in cells if not each.done]
        samples = {each.left for each in left}
        times = [each.seconds_per_sample for each in left if each.seconds_per_sample is not None]
        seconds = [each.seconds for each in left if each.seconds is not None]
        table.add_row(
            name,
            cells[0].cell.benchmark.harness,
            f"{len(left)} of {len(cells)}",
            " to ".join(f"{count:,}" for count in sorted({min(known), max(known)}))
            if (known := [count for count in samples if count is not None])
            else NOTHING,
            f"{fmean(times):.2f}" if times else NOTHING,
            format_duration(sum(seconds)) if len(seconds) == len(left) else NOTHING,
        )
    return table


def describe(estimate: RunEstimate) -> list[str]:
    """Return sentences about the whole run: its settings, its GPUs, and its time."""
    settings = list(dict.fromkeys(str(each.cell.spec) for each in estimate.cells))
    gpus = f"{estimate.gpus_per_task:g} GPU{'' if estimate.gpus_per_task == 1 else 's'}"
    sentences = [
        f"Settings: {', '.join(settings)}.",
        f"{len(estimate.left)} of {len(estimate.cells)} tasks are left. Each takes {gpus}; {estimate.tasks_at_once} "
        f"{'runs' if estimate.tasks_at_once == 1 else 'run'} at the same time, on "
        f"{estimate.tasks_at_once * estimate.gpus_per_task:g} GPUs in all.",
    ]
    if len(estimate.unknown) < len(estimate.left):
        missing = f", without {len(estimate.unknown)} tasks whose time is not known" if estimate.unknown else ""
        sentences.append(
            f"At the seconds per sample that were measured in {estimate.measured}, the tasks take "
            f"{format_duration(estimate.busy_seconds)} together "
            f"({estimate.busy_seconds * estimate.gpus_per_task / 3600:,.1f} GPU hours), and "
            f"{format_duration(estimate.wall_seconds)} until the last one ends{missing}. Loading models and data comes "
            "on top."
        )
    for name in dict.fromkeys(each.cell.benchmark.name for each in estimate.left if each.left is None):
        sentences.append(f"The number of samples of {name} is not known: run one setting of it, or give --samples.")
    if any(each.seconds_per_sample is None for each in estimate.left):
        sentences.append(
            f"There are no measured times in {estimate.measured}: run a trial with --samples 20 --out TRIAL, and give "
            "--measured TRIAL here."
        )
    return sentences


def format_duration(seconds: float) -> str:
    """Format a duration: "42 s", "8 min", "3 h 20 min", "2 d 4 h"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


class _MeasuredTimes:
    """The seconds per sample of finished cells, by setting and benchmark."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._by_key = {record["key"]: record for record in records if record["answers"]}

    def find(self, cell: Cell) -> float | None:
        """Return the time of the cell, or else of its benchmark, or else of its setting, or else of all cells."""
        own = [record for key, record in self._by_key.items() if key == cell.key]
        benchmark = [record for record in self._by_key.values() if record["benchmark"]["name"] == cell.benchmark.name]
        setting = [record for key, record in self._by_key.items() if key.rpartition("/")[0] == cell.spec.key]
        for records in (own, benchmark, setting, list(self._by_key.values())):
            if records:
                return sum(each["seconds"] for each in records) / sum(each["answers"] for each in records)
        return None


def _read(folder: Path, model: str, *, required: bool) -> tuple[Record, list[Record]]:
    if not required and not (folder / MANIFEST).exists():
        return {}, []
    manifest, records = Journal.read(folder)
    if (known := manifest["settings"].get("model")) != model:
        raise ValueError(f"{folder} has results of {known}, not of {model}: give a folder of the same model")
    return manifest, records


def _read_answers(journal: Path) -> list[Record]:
    return Journal.read(journal)[1] if (journal / MANIFEST).exists() else []


def _mean_time(answers: Sequence[Record]) -> float | None:
    return fmean(each["prepare_seconds"] + each["generate_seconds"] for each in answers) if answers else None


def _count_samples(benchmark: Benchmark, limit: int | None, known: int | None) -> int | None:
    """Return the number of samples: those that were answered before, or the benchmark's size, but at most the limit."""
    size = known or benchmark.size or None
    if limit is None:
        return size
    limited = limit * len(benchmark.tasks)
    return limited if size is None else min(size, limited)
