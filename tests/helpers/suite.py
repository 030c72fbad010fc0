"""A suite of three small benchmarks, the command that runs it with the fake lmms-eval, and what that has logged."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from helpers import fake_lmms_eval

MODEL = "llava-1.5-7b-hf"
SUITE = {
    "model": MODEL,
    "benchmarks": [
        {"name": "GQA", "harness": "lmms-eval", "tasks": ["first"], "metrics": ["hits,none"], "scale": 100},
        {"name": "MME", "harness": "lmms-eval", "tasks": ["one", "two"], "metrics": ["hits*"], "combine": "sum"},
        {"name": "POPE", "harness": "lmms-eval", "tasks": ["third"], "metrics": ["hits,none"], "needs": "judge"},
    ],
}


def write_suite(folder):
    """Write the suite and a fake interpreter that behaves as if it had lmms-eval; return the folder."""
    (folder / "suite.json").write_text(json.dumps(SUITE))
    python = folder / "python"
    python.write_text(f"#!{sys.executable}\n" + Path(fake_lmms_eval.__file__).read_text())
    python.chmod(0o755)
    return folder


def arguments(working, *more, out="out"):
    given = {"--methods": "eadp,topk", "--keep": "128,64", "--python": working / "python", "--out": working / out}
    return ["eval", str(working / "suite.json"), *(str(word) for pair in given.items() for word in pair), *more]


def output_of(result):
    return " ".join(result.output.replace("│", " ").split())


def lines(working, name):
    """Return what the fake harness has logged to a file."""
    path = working / name
    return path.read_text().splitlines() if path.exists() else []


def count(working, name):
    return len(lines(working, name))


def wait_until_dead(working, seconds=60):
    """Wait for all harnesses to die with their runner."""
    give_up = time.monotonic() + seconds
    while living := [int(pid) for pid in lines(working, "pids") if _lives(int(pid))]:
        if time.monotonic() > give_up:
            for pid in living:
                os.kill(pid, signal.SIGKILL)
            pytest.fail("a harness outlived its runner")
        time.sleep(0.05)


def _lives(pid):
    """Return whether a process lives. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
