"""`eadp eval` with the real lmms-eval, and the names of the suites' tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tasks
from lmms_eval.tasks import TaskManager
from scenes import answer_without_harness
from typer.testing import CliRunner

from eadp.cli import app
from eadp.evaluate import suites

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
