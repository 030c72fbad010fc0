"""Runs one cell of a suite: the harness in its own process, then the check and the record of what it did."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from eadp.evaluate.journal import Journal, Record
from eadp.evaluate.suites import harness
from eadp.evaluate.suites.harness import Cell
from eadp.evaluate.suites.suite import Benchmark
from eadp.utils.die_with_parent import die_with_parent
from eadp.utils.files import replace_file

POLL_SECONDS = 0.5
"""How often the progress of a harness is checked."""
TERMINATION_SECONDS = 10
"""How long a terminated harness may take to end before it is killed. torchrun ends its ranks in this time."""
RELEASE_SECONDS = 60
"""How long to wait until the processes of a killed run have released the cell's journal."""
RECORD = "record.json"
"""The file in the folder of a cell that has its record. It is written when everything else is there."""
STARTED = "started.json"
"""The file in the folder of a cell that says what its last harness was started for, and which results were there."""
COLOUR_CODE = re.compile(r"\x1b\[[0-9;]*m")
"""What loggers write to a terminal to change its colour."""
DESCRIPTIVE_FIELDS = ("only_named", "split", "measure", "size", "needs", "remark")
"""Fields of a benchmark that do not affect its value."""


def run_cell(cell: Cell, python: str) -> Generator[int, None, Record]:
    """Run a cell to its end. The harness continues with the answers in the cell's journal.

    A cell that has ended before, but whose runner died before it recorded that, is not run again.

    Args:
        cell: The cell.
        python: The interpreter that has the harness.

    Yields:
        Repeatedly, the number of answers so far.

    Returns:
        The cell's record for the journal of the suite.

    Raises:
        ValueError: If the harness failed, whatever its exit code says, or another process keeps writing to the journal.
    """
    command = harness.build_command(cell, python)
    _wait_for_release(cell.journal)
    if (record := _read_record(cell) or _recover_record(cell)) is not None:
        return record
    earlier_results = harness.list_results(cell)
    _note_start(cell, earlier_results)
    yield from _run_harness(cell, command)
    return _write_record(cell, earlier_results)


def define_measurement(benchmark: Benchmark) -> Record:
    """Return the fields of a benchmark that define its value, as a journal stores them."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(benchmark).items()
        if name not in DESCRIPTIVE_FIELDS
    }


def count_answers(journal: Path) -> int:
    """Count the answers in a cell's journal, which may be written to meanwhile."""
    return sum(path.read_bytes().count(b"\n") for path in journal.glob("samples*.jsonl"))


def _run_harness(cell: Cell, command: Sequence[str]) -> Generator[int, None, None]:
    log = _log_of(cell)
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
                yield count_answers(cell.journal)
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


def _wait_for_release(journal: Path) -> None:
    """Wait until no process of an earlier, killed run of the cell writes to the journal any more.

    The kernel ends those processes together with their runner, but on another node of a cluster this can take longer
    than the next attempt takes to start.
    """
    give_up = time.monotonic() + RELEASE_SECONDS
    while _is_locked(journal):
        if time.monotonic() > give_up:
            raise ValueError(f"another process keeps writing to {journal}: end it, or give another folder")
        time.sleep(POLL_SECONDS)


def _is_locked(journal: Path) -> bool:
    for path in journal.glob("samples*.jsonl"):
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _note_start(cell: Cell, earlier_results: harness.ResultFiles) -> None:
    results = {path.relative_to(cell.folder).as_posix(): changed for path, changed in earlier_results.items()}
    noted = {"benchmark": define_measurement(cell.benchmark), "results": results}
    cell.folder.mkdir(parents=True, exist_ok=True)
    replace_file(cell.folder / STARTED, json.dumps(noted, indent=1) + "\n")


def _recover_record(cell: Cell) -> Record | None:
    """Write the record of a harness that had written all its results when its runner died; None if there is none."""
    path = cell.folder / STARTED
    noted = json.loads(path.read_text("utf-8")) if path.exists() else None
    if noted is None or noted["benchmark"] != define_measurement(cell.benchmark):
        return None
    try:
        if not harness.has_logged_samples(cell):
            return None
        return _write_record(cell, {cell.folder / name: changed for name, changed in noted["results"].items()})
    except ValueError:  # The results are not complete.
        return None


def _write_record(cell: Cell, earlier_results: harness.ResultFiles) -> Record:
    record = _build_record(cell, earlier_results)
    _save_scores(cell)
    replace_file(cell.folder / RECORD, json.dumps(record, indent=1) + "\n")
    return record


def _build_record(cell: Cell, earlier_results: harness.ResultFiles) -> Record:
    _check_success(cell, earlier_results)
    _, answers = Journal.read(cell.journal)
    figures = harness.read_figures(cell)
    return {
        "method": cell.spec.method,
        "keep": cell.spec.keep,
        "options": cell.spec.options,
        "scripted": cell.benchmark.script_settings(cell.spec),
        "benchmark": define_measurement(cell.benchmark),
        "value": None if cell.benchmark.needs == "server" else cell.benchmark.value(figures),
        "figures": figures,
        "answers": len(answers),
        **{name: fmean(each[name] for each in answers) for name in ("tokens", "sent", "layer_mean")},
        "seconds": sum(each["prepare_seconds"] + each["generate_seconds"] for each in answers),
        "journal": str(cell.journal.relative_to(cell.folder.parents[1])),
    }


def _check_success(cell: Cell, earlier_results: harness.ResultFiles) -> None:
    """Raise an error unless the harness answered and scored all samples.

    lmms-eval ends with exit code 0 even if it failed, so what it wrote decides, and only what it wrote this time.
    """
    name, log = cell.benchmark.harness, _log_of(cell)
    if not count_answers(cell.journal):
        raise ValueError(
            f"{name} ended with 0 but without an answer, so it failed; {log} ends with: {_read_last_lines(log)}"
        )
    if harness.list_results(cell) == earlier_results:
        raise ValueError(
            f"{name} ended with 0 but wrote no results, so it failed; {log} ends with: {_read_last_lines(log)}"
        )
    answered: dict[str, int] = {}
    for each in Journal.read(cell.journal)[1]:
        answered[each["task"]] = answered.get(each["task"], 0) + 1
    for task, scored in harness.read_scored_counts(cell).items():
        if answered.get(task, 0) < scored:
            raise ValueError(
                f"{name} scored {scored} samples of {task}, but the model answered {answered.get(task, 0)}; see {log}"
            )


def _read_record(cell: Cell) -> Record | None:
    """Read the record of a cell that has ended with the same benchmark."""
    path = cell.folder / RECORD
    record = json.loads(path.read_text("utf-8")) if path.exists() else None
    return record if record is not None and record["benchmark"] == define_measurement(cell.benchmark) else None


def _save_scores(cell: Cell) -> None:
    """Save the score of each sample in the cell's folder, for `eadp compare`."""
    settings = {"model": cell.model, "benchmark": cell.benchmark.name, **cell.settings()}
    with Journal.open(cell.folder, settings) as journal:
        scores = harness.read_scores(cell).items()
        journal.extend(
            (key, {"task": key.rpartition("/")[0], "score": score}) for key, score in scores if key not in journal
        )


def _log_of(cell: Cell) -> Path:
    return cell.folder / "log.txt"


def _read_last_lines(log: Path) -> str:
    """Return the end of a log without colours: several lines, because one message is often broken into several."""
    text = COLOUR_CODE.sub("", log.read_text("utf-8", errors="replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-3:])[-300:] or "nothing"
