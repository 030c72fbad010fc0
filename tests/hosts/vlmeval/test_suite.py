"""`eadp eval` with the real VLMEvalKit, and the names of the suites' data sets."""

from __future__ import annotations

import json
from pathlib import Path

import data
import pytest
from scenes import answer_without_harness
from typer.testing import CliRunner
from vlmeval.dataset import SUPPORTED_DATASETS

from eadp.cli import app
from eadp.evaluate import suites

TOTAL = 8
KEEP = 3
TASK = f"{data.POPE}:ImageYORNDataset"
SUITE = {
    "model": "pocket",
    "benchmarks": [
        {"name": "POPE", "harness": "vlmeval", "tasks": [TASK], "metrics": ["split=Overall|acc"]},
    ],
}


def test_every_data_set_of_the_suites_exists() -> None:
    every = [each for name in suites.SUITE_NAMES for each in suites.load_suite(name).benchmarks]
    wanted = [task for each in every if each.harness == "vlmeval" for task in each.tasks]
    assert len(wanted) == 14
    assert [task for task in wanted if task not in SUPPORTED_DATASETS] == []


@pytest.mark.slow
def test_suite_reports_the_accuracy_of_the_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMUData", str(tmp_path / "data"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    scenes = data.write(tmp_path / "data", TOTAL)[data.POPE]
    (tmp_path / "suite.json").write_text(json.dumps(SUITE))
    out = tmp_path / "out"
    command = ["eval", str(tmp_path / "suite.json"), "--keep", str(KEEP), "--out", str(out)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    cells = {each["method"]: each for each in json.loads((out / "results.json").read_text())["cells"]}
    for method, settings in {"all tokens": {"method": "none"}, "eadp": {"method": "eadp", "keep": KEEP}}.items():
        answers, tokens = answer_without_harness(scenes, [data.prompt(scene) for scene in scenes], **settings)
        right = [scene.answer == answer for scene, answer in zip(scenes, answers, strict=True)]
        assert cells[method]["value"] == pytest.approx(100 * sum(right) / TOTAL)
        assert cells[method]["tokens"] == cells[method]["sent"] == sum(tokens) / TOTAL
    logs = {path: path.stat().st_size for path in out.rglob("log.txt")}
    assert CliRunner().invoke(app, command).exit_code == 0
    assert {path: path.stat().st_size for path in out.rglob("log.txt")} == logs
