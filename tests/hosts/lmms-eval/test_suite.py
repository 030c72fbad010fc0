"""`eadp eval` with the real lmms-eval, and the names of the suites' tasks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import tasks
from lmms_eval.tasks import TaskManager
from scenes import answer_without_harness
from typer.testing import CliRunner

from eadp.cli import app
from eadp.evaluate import suites
from eadp.evaluate.journal import Journal

TOTAL = 8
KEEP = 3
SUITE = {
    "model": "pocket",
    "include": "tasks",
    "benchmarks": [
        {"name": "POPE", "harness": "lmms-eval", "tasks": [tasks.POPE], "metrics": ["pope_accuracy,none"], "scale": 100}
    ],
}


def test_every_task_of_the_suites_exists() -> None:
    known = set(TaskManager().all_tasks)
    wanted = [
        task for name in suites.SUITE_NAMES for each in suites.load_suite(name).benchmarks for task in _tasks(each)
    ]
    assert len(wanted) == 34
    assert [task for task in wanted if task not in known] == []


def _tasks(benchmark: suites.Benchmark) -> tuple[str, ...]:
    return benchmark.tasks if benchmark.harness == "lmms-eval" else ()


@pytest.mark.slow
def test_suite_reports_the_accuracy_of_the_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    scenes = tasks.write(tmp_path / "tasks", TOTAL)[tasks.POPE]
    (tmp_path / "suite.json").write_text(json.dumps(SUITE))
    out = tmp_path / "out"
    command = ["eval", str(tmp_path / "suite.json"), "--keep", str(KEEP), "--batch", "4", "--out", str(out)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    cells = {each["method"]: each for each in json.loads((out / "results.json").read_text())["cells"]}
    for method, settings in {"all tokens": {"method": "none"}, "eadp": {"method": "eadp", "keep": KEEP}}.items():
        answers, tokens = answer_without_harness(scenes, [tasks.prompt(scene) for scene in scenes], **settings)
        right = [scene.answer == answer for scene, answer in zip(scenes, answers, strict=True)]
        assert cells[method]["value"] == pytest.approx(100 * sum(right) / TOTAL)
        assert cells[method]["tokens"] == cells[method]["sent"] == sum(tokens) / TOTAL
    compared = CliRunner().invoke(
        app, ["compare", *(str(out / name / "POPE") for name in ("all_tokens", "eadp_keep=3"))]
    )
    assert compared.exit_code == 0, compared.output
    logs = {path: path.stat().st_size for path in out.rglob("log.txt")}
    assert CliRunner().invoke(app, command).exit_code == 0
    assert {path: path.stat().st_size for path in out.rglob("log.txt")} == logs


def test_failure_of_lmms_eval_with_exit_code_0_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task raises an error when it scores the answers. lmms-eval prints it and ends with 0."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    tasks.write(tmp_path / "tasks", 2)
    with open(tmp_path / "tasks" / "utils.py", "a") as functions:
        functions.write("\n\ndef pope_process_results(doc, results):\n    raise OSError('no judge')\n")
    (tmp_path / "suite.json").write_text(json.dumps(SUITE))
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["eval", str(tmp_path / "suite.json"), "--keep", str(KEEP), "--out", str(out)])
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "failed: eadp 3 on POPE: lmms-eval ended with 0 but wrote no results, so it failed" in said
    assert "Error during evaluation" in said
    assert "OSError" in said
    assert Journal.read(out)[1] == []


@pytest.mark.slow
def test_killed_ranks_and_runners_end_with_the_same_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    tasks.write(tmp_path / "tasks", TOTAL)
    (tmp_path / "suite.json").write_text(json.dumps(SUITE))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    command = ["eval", str(tmp_path / "suite.json"), "--keep", str(KEEP), "--out"]
    assert CliRunner().invoke(app, [*command, str(whole)]).exit_code == 0
    two_ranks = [sys.executable, "-m", "eadp", *command, str(killed), "--ranks", "2"]

    with subprocess.Popen(two_ranks, stdout=subprocess.PIPE, text=True) as runner:
        _wait_for(lambda: _count_answers(killed) >= 1, runner)
        os.kill(_ranks(killed)[1], signal.SIGKILL)
        said = " ".join(runner.communicate()[0].split())
        assert runner.returncode == 1
        assert "failed: all tokens on POPE: lmms-eval ended with 1" in said
    assert _ranks(killed) == {}

    answered = _count_answers(killed)
    with subprocess.Popen(two_ranks, stdout=subprocess.DEVNULL) as runner:
        _wait_for(lambda: _count_answers(killed) > answered or len(_ranks(killed)) == 2, runner)
        runner.send_signal(signal.SIGKILL)
    _wait_for(lambda: not _ranks(killed))

    result = subprocess.run(two_ranks, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    results = [
        {
            each["method"]: (each["value"], each["tokens"])
            for each in json.loads((out / "results.json").read_text())["cells"]
        }
        for out in (whole, killed)
    ]
    assert results[0] == results[1]
    for folder in killed.glob("*/POPE/journal"):
        lines = [line for path in folder.glob("samples*.jsonl") for line in path.read_text().splitlines()]
        assert set(Counter(json.loads(line)["key"] for line in lines).values()) == {1}
        assert len(lines) == TOTAL


def _count_answers(out: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in out.glob("*/POPE/journal/samples*.jsonl"))


def _ranks(out: Path) -> dict[int, int]:
    """Return the processes of lmms-eval that work on a folder, by their ranks."""
    ranks = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, variables = ((process / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
        except OSError:  # it has ended, or is another user's
            continue
        rank = next((variable[5:] for variable in variables if variable.startswith(b"RANK=")), None)
        if rank is not None and any(str(out).encode() in word for word in command):
            ranks[int(rank)] = int(process.name)
    return ranks


def _wait_for(condition: Callable[[], object], process: subprocess.Popen | None = None, seconds: float = 600) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None
        assert time.monotonic() < give_up
        time.sleep(0.02)
