"""Run a command that keeps a journal, and kill it in the middle of its work."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eadp.evaluate.journal import Journal

LONGEST = 3600
"""Seconds after which a command is considered to hang, even on a slow machine."""


def start(command: Sequence[str], log: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a command in its own process group. It writes to a file because a full pipe would block it."""
    with log.open("w") as file:
        return subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, **environment},
        )


def run(command: Sequence[str], log: Path, **environment: str) -> None:
    process = start(command, log, **environment)
    try:
        code = process.wait(LONGEST)
    except subprocess.TimeoutExpired:
        _kill(process)
        raise
    assert code == 0, log.read_text()[-4000:]


def kill_after(
    answers: int, journal: Path, command: Sequence[str], log: Path, **environment: str
) -> list[dict[str, Any]]:
    """Start a command, kill it when the journal has this many answers, and return its records."""
    process = start(command, log, **environment)
    samples, give_up = journal / "samples.jsonl", time.monotonic() + LONGEST
    while not samples.exists() or samples.read_bytes().count(b"\n") < answers:
        assert process.poll() is None, log.read_text()[-4000:]
        if time.monotonic() > give_up:
            _kill(process)
            raise subprocess.TimeoutExpired(command, LONGEST)
        time.sleep(0.01)
    _kill(process)
    return Journal.read(journal)[1]


def _kill(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
