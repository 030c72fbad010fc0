"""Runs the cells of a suite as tasks of a Ray cluster. Only this module imports Ray.

A task is one cell. It runs the same code as on a single machine, and reports to the driver, which alone writes the
journal of the suite. If the node does not see the folder of results, the task works in a temporary folder, from which
its answers are sent to the driver as soon as they are known, and the other files at the end.
"""

from __future__ import annotations

import math
import socket
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from eadp._version import __version__
from eadp.evaluate.journal import Record
from eadp.evaluate.suites import harness
from eadp.evaluate.suites.cell_run import run_cell
from eadp.evaluate.suites.harness import Cell
from eadp.evaluate.suites.plan import SuitePlan
from eadp.evaluate.suites.runner import CellExecutor, CellOutcome, ProgressCallback
from eadp.evaluate.suites.suite import HarnessName
from eadp.evaluate.suites.transfer import FilePart, FolderSender, read_progress, write_part
from eadp.utils.files import replace_file

WAIT_SECONDS = 0.5
"""How long to wait for reports before the driver looks again."""
RETRIES = 3
"""How often a cell is started again by default after its worker or its node died."""
CONNECT_SECONDS = 20
"""How long the head node may take to answer."""
TOKEN_FILE = ".run"
"""A file in the folder of results by which a node notices whether it sees that folder."""

RayNode = Mapping[str, Any]


@dataclass(frozen=True)
class NodeJob:
    """What a node has to know to run cells of a plan.

    Attributes:
        version: The version of eadp on the driver.
        python: The interpreter that has the harness; None for that of Ray on the node.
        node_pythons: By the name or address of a node, its own interpreter instead.
        model: The folder of the checkpoint, if it is one; nodes need it too.
        include: The folder of further lmms-eval tasks; nodes need it too.
        judge: Whether the driver has the key of an online judge, which nodes need too; None if no benchmark needs one.
        out: The folder of results.
        token: The content of `TOKEN_FILE` in it.
    """

    version: str
    python: str | None
    node_pythons: Mapping[str, str]
    model: Path | None
    include: Path | None
    judge: bool | None
    out: Path
    token: str


@dataclass(frozen=True)
class NodeReport:
    """What a task tells the driver. The last report has a record or a failure.

    Attributes:
        answers: The number of answers so far.
        parts: Parts of files, if the node does not see the folder of results.
        record: The record of the finished cell.
        failure: Why the cell failed.
        host: The name of the node.
    """

    answers: int = 0
    parts: list[FilePart] = field(default_factory=list)
    record: Record | None = None
    failure: str = ""
    host: str = ""


@contextmanager
def connect(address: str, gpus_per_task: float | None = None, retries: int = RETRIES) -> Iterator[RayRunner]:
    """Connect to a Ray cluster, as a context that disconnects at its end. Tasks that are running then are ended.

    Args:
        address: HOST:PORT of the head node, or "auto" for the cluster that this machine belongs to.
        gpus_per_task: See `RayRunner`.
        retries: See `RayRunner`.

    Raises:
        ValueError: If there is no such cluster, or the number of GPUs is not possible.
    """
    if "://" in address:
        raise ValueError(
            f"--ray takes HOST:PORT of the head node, not {address}: run the command on a node of the cluster"
        )
    try:
        _check_port(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise ValueError(
            f"there is no Ray cluster at {address!r} ({_first_line(error)}): start one with `ray start --head`, join "
            "it from other machines with `ray start --address=HOST:PORT`, and run this command on one of them"
        ) from error
    try:
        yield RayRunner(gpus_per_task, retries)
    finally:
        ray.shutdown()


class RayRunner:
    """Runs cells on the Ray cluster that this process is connected to.

    Args:
        gpus_per_task: The GPUs of a task: 0, a fraction if tasks share a GPU, or a whole number. None is one per rank,
            or 0 if the cluster has no GPU.
        retries: How often a cell is started again after its worker or its node died.

    Raises:
        ValueError: If the number of GPUs is not possible.
    """

    def __init__(self, gpus_per_task: float | None = None, retries: int = RETRIES) -> None:
        if gpus_per_task is not None and gpus_per_task > 1 and gpus_per_task != int(gpus_per_task):
            raise ValueError(f"--gpus-per-task is a share of one GPU or a whole number, got {gpus_per_task}")
        self._given_gpus, self.retries = gpus_per_task, retries

    def gpus_per_task(self, ranks: int) -> float:
        """Return the number of GPUs of a task whose cell has this many ranks."""
        if self._given_gpus is not None:
            return self._given_gpus
        return ranks if any(_gpus_of(node) for node in _living_nodes()) else 0

    def tasks_at_once(self, ranks: int) -> int:
        """Return how many tasks the cluster runs at the same time.

        Raises:
            ValueError: If it runs none.
        """
        gpus = self.gpus_per_task(ranks)
        at_once = sum(_tasks_at_once(node, gpus) for node in _living_nodes())
        if not at_once:
            most = max((_gpus_of(node) for node in _living_nodes()), default=0)
            raise ValueError(
                f"no node of the cluster has a CPU and {gpus:g} GPUs for a task; the largest has {most:g} GPUs: give "
                "fewer with --gpus-per-task, or add a node"
            )
        return at_once

    def prepare(self, plan: SuitePlan) -> CellExecutor:
        """Check that all nodes can run the plan, and return what runs its cells.

        Raises:
            ValueError: If no node can run a task, or a node lacks something.
        """
        self.tasks_at_once(plan.ranks)
        gpus = self.gpus_per_task(plan.ranks)
        model = Path(plan.model)
        if model.is_dir() and not model.is_absolute():
            raise ValueError(f"nodes have other working folders: give --model as an absolute path, {model.absolute()}")
        job = NodeJob(
            __version__,
            plan.python,
            plan.node_pythons,
            model if model.is_dir() else None,
            plan.suite.include,
            plan.judge if any("judge" in benchmark.needs for benchmark in plan.benchmarks) else None,
            plan.out.absolute(),
            uuid.uuid4().hex,
        )
        _check_node_names(job.node_pythons)
        _check_nodes(job, sorted(plan.harnesses), gpus)

        def execute(cells: Sequence[Cell], on_progress: ProgressCallback) -> Iterator[CellOutcome]:
            token_file = job.out / TOKEN_FILE
            replace_file(token_file, job.token)
            try:
                yield from self._execute(job, cells, gpus, on_progress)
            finally:
                token_file.unlink(missing_ok=True)

        return execute

    def _execute(
        self, job: NodeJob, cells: Sequence[Cell], gpus: float, on_progress: ProgressCallback
    ) -> Iterator[CellOutcome]:
        # Ray's own retries would start a task with the answers of its first attempt.
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0, num_returns="streaming")(_run_on_node)

        def start(cell: Cell) -> Any:
            return task.remote(job, cell, read_progress(cell.folder))

        attempts = Counter(cell.key for cell in cells)
        running = {start(cell): cell for cell in cells}
        while running:
            ready, _ = ray.wait(list(running), num_returns=len(running), timeout=WAIT_SECONDS, fetch_local=False)
            for stream in ready:
                cell = running[stream]
                try:
                    report = ray.get(next(stream))
                except RayTaskError as error:
                    report = NodeReport(failure=_cause(error))
                except (RayError, StopIteration) as error:
                    del running[stream]
                    if attempts[cell.key] > self.retries:
                        died = f"its worker or node died {attempts[cell.key]} times: {_first_line(error)}"
                        yield CellOutcome(cell, failure=died, attempts=attempts[cell.key])
                    else:
                        attempts[cell.key] += 1
                        running[start(cell)] = cell
                    continue
                for part in report.parts:
                    write_part(cell.folder, part)
                if report.record is None and not report.failure:
                    on_progress(cell, report.answers)
                else:
                    del running[stream]
                    yield CellOutcome(cell, report.record, report.failure, report.host, attempts[cell.key])


def _run_on_node(job: NodeJob, cell: Cell, progress: Sequence[FilePart]) -> Iterator[NodeReport]:
    """The task: run a cell on this node, from where the driver knows it to be, and report to the driver."""
    host, count = str(_this_node()["NodeName"]), 0
    with ExitStack() as stack:
        root, sender = job.out, None
        if not _sees_results(job):
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eadp-")))
            cell = replace(cell, folder=root / cell.folder.relative_to(job.out))
            sender = FolderSender(cell.folder, progress)
        try:
            python = _check_node(job, [cell.benchmark.harness])[cell.benchmark.harness]
            run = stack.enter_context(closing(run_cell(cell, python)))
            yield NodeReport()
            while True:
                count, before = next(run), count
                parts = list(sender.new_answers()) if sender else []
                if parts or count != before:
                    yield NodeReport(count, parts)
        except StopIteration as end:
            last = NodeReport(record=end.value, host=host)
        except ValueError as error:
            last = NodeReport(failure=str(error).replace(str(root), str(job.out)), host=host)
        for part in chain(sender.new_answers(), sender.everything_else()) if sender else ():
            yield NodeReport(count, [part])
        yield last


def _check_port(address: str) -> None:
    """Raise an OSError or a ValueError unless something answers at HOST:PORT. Ray itself would try for many minutes."""
    host, colon, port = address.rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()


def _check_nodes(job: NodeJob, harnesses: Sequence[HarnessName], gpus: float) -> None:
    """Raise an error unless every node that will get tasks has what it needs for them."""
    check = ray.remote(num_cpus=0, max_retries=0)(_check_node)
    checks = {
        str(node["NodeName"]): check.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(job, harnesses)
        for node in _living_nodes()
        if _tasks_at_once(node, gpus)
    }
    problems = []
    for name, result in checks.items():
        try:
            ray.get(result)
        except RayTaskError as error:
            problems.append(f"node {name}: {_cause(error)}")
        except RayError:
            continue  # The node has died. Its tasks would be started on others, too.
    if problems:
        raise ValueError("; ".join(problems))


def _check_node(job: NodeJob, harnesses: Sequence[HarnessName]) -> dict[HarnessName, str]:
    """Return the interpreters of the harnesses on this node.

    Raises:
        ValueError: If the node cannot run the cells of a job.
    """
    if __version__ != job.version:
        raise ValueError(f"it has eadp {__version__}, the driver {job.version}: install the same version")
    for name, folder in (("the checkpoint", job.model), ("the folder of tasks", job.include)):
        if folder is not None and not folder.is_dir():
            raise ValueError(f"it does not have {name} {folder}: copy it to the same path, or use a shared file system")
    if job.judge is not None and job.judge != harness.has_judge():
        having, lacking = ("the driver", "this node") if job.judge else ("this node", "the driver")
        raise ValueError(
            f"{having} has a key of an online judge ({' or '.join(harness.JUDGE_KEYS)}), {lacking} has none: set the "
            "same before `ray start` and for this command"
        )
    names = _names_of(_this_node())
    python = next((path for name, path in job.node_pythons.items() if name in names), job.python)
    return {name: harness.find_interpreter(name, python) for name in harnesses}


def _check_node_names(node_pythons: Mapping[str, str]) -> None:
    names = set().union(*map(_names_of, _living_nodes()))
    for name in node_pythons:
        if name not in names:
            raise ValueError(f"--python names the node {name}, but the cluster has {', '.join(sorted(names))}")


def _sees_results(job: NodeJob) -> bool:
    """Return whether this node sees the driver's folder of results."""
    try:
        return (job.out / TOKEN_FILE).read_text() == job.token
    except OSError:
        return False


def _living_nodes() -> list[RayNode]:
    return [node for node in ray.nodes() if node["Alive"]]


def _this_node() -> RayNode:
    own = ray.get_runtime_context().get_node_id()
    return next(node for node in ray.nodes() if node["NodeID"] == own)


def _names_of(node: RayNode) -> set[str]:
    return {str(node[name]) for name in ("NodeName", "NodeManagerAddress", "NodeManagerHostname")}


def _gpus_of(node: RayNode) -> float:
    return node["Resources"].get("GPU", 0)


def _tasks_at_once(node: RayNode, gpus_per_task: float) -> int:
    """Return how many tasks a node runs at the same time. Each also takes one CPU."""
    cpus = math.floor(node["Resources"].get("CPU", 0))
    if not gpus_per_task:
        return cpus
    per_gpu = math.floor(1 / gpus_per_task) if gpus_per_task < 1 else 1 / gpus_per_task
    return min(cpus, math.floor(_gpus_of(node) * per_gpu))


def _cause(error: RayTaskError) -> str:
    """Return what went wrong inside a task, without Ray's traceback."""
    cause = error.cause
    return str(cause) if isinstance(cause, ValueError) else f"{type(cause).__name__}: {cause}".splitlines()[-1]


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
