"""The pocket benchmark: results are added to a folder, and interrupted runs continue."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from eadp.cli import app
from eadp.evaluate import pocket_benchmark as pocket
from eadp.evaluate.journal import Journal
from eadp.method_spec import ALL_TOKENS, MethodSpec
from eadp.pocket.storage import WEIGHTS


def run(*arguments):
    return CliRunner().invoke(app, ["eval", *arguments], env={"COLUMNS": "160"})


def lines(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def test_more_methods_and_questions_are_added_to_a_folder(tmp_path):
    assert (
        run("pocket", "--methods", "uniform", "--keep", "16", "--samples", "3", "--out", str(tmp_path)).exit_code == 0
    )
    before = lines(tmp_path)
    more = ("pocket", "--methods", "uniform,random", "--keep", "16", "--samples", "5", "--out", str(tmp_path))
    result = run(*more, "--set", "random.seed=3")
    assert result.exit_code == 0, result.output
    after = lines(tmp_path)
    assert len(before) == 3 * 3
    assert after[: len(before)] == before
    assert len({line["key"] for line in after}) == len(after) == 4 * 5
    results = json.loads((tmp_path / "results.json").read_text())
    settings = [(each["method"], each["keep"], each["options"]) for each in results["outcomes"]]
    assert settings[2:4] == [("uniform", 16, {}), ("random", 16, {"seed": 3})]
    assert results["outcomes"][3]["answers"] == [line["answer"] for line in after if line["method"] == "random"]
    assert "random 16, seed=3" in (tmp_path / "table.md").read_text()


def test_answered_questions_are_not_asked_again(tmp_path, monkeypatch):
    settings = [MethodSpec(ALL_TOKENS), MethodSpec("uniform", 16)]
    with Journal.open(tmp_path, pocket.journal_settings()) as journal:
        first = pocket.evaluate(settings, 5, journal=journal)
    monkeypatch.setattr(pocket, "load_model", lambda name: pytest.fail("the model was loaded"))
    steps = []
    with Journal.open(tmp_path, pocket.journal_settings()) as journal:
        assert pocket.evaluate(settings, 5, journal=journal, progress=steps.append) == first
    assert sum(steps) == 2 * 5


def test_lost_part_of_a_batch_is_answered_identically(tmp_path):
    settings = [MethodSpec(ALL_TOKENS), MethodSpec("uniform", 16)]
    with Journal.open(tmp_path, pocket.journal_settings()) as journal:
        first = pocket.evaluate(settings, 20, journal=journal)
    whole = lines(tmp_path)
    file = tmp_path / "samples.jsonl"
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
    with Journal.open(tmp_path, pocket.journal_settings()) as journal:
        assert 20 < len(journal) < 32
        assert pocket.evaluate(settings, 20, journal=journal) == first
    assert lines(tmp_path) == whole


@pytest.mark.slow
def test_any_checkpoint_can_be_evaluated(tmp_path):
    result = run(
        *("pocket", "--model", str(WEIGHTS), "--methods", "eadp", "--keep", "64", "--samples", "8"),
        *("--out", str(tmp_path)),
    )
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["model"] == str(WEIGHTS)
    assert found["outcomes"][0]["accuracy"] >= 0.75


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "mu"), "written NAME=VALUE"),
        (("--set", "seed=1"), "eadp has no setting seed; it has"),
        (("--set", "topk.mu=1"), "options are given for topk, but the methods are eadp"),
        (("--keep", "0"), "at least 1"),
        (("--model", "/nowhere"), "no model can be read"),
    ],
)
def test_errors_are_raised_before_anything_runs(tmp_path, arguments, message):
    result = run("pocket", *arguments, "--samples", "1", "--out", str(tmp_path / "out"))
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.replace("│", " ").split())


@pytest.mark.slow
def test_killed_runs_end_with_the_same_table(tmp_path):
    arguments = ["pocket", "--methods", "eadp,uniform", "--keep", "16", "--samples", "64"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(*arguments, "--out", str(whole)).exit_code == 0
    command = [sys.executable, "-c", "from eadp.cli import app; app()", "eval", *arguments, "--out", str(killed)]
    samples, chance, seen = killed / "samples.jsonl", random.Random(2), b""
    for goal in (1, 130):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while not samples.exists() or samples.read_bytes().count(b"\n") < goal:
                assert process.poll() is None
                time.sleep(0.1)
            refused = run(*arguments, "--out", str(killed))
            assert refused.exit_code == 2
            assert "another run is writing" in refused.output
            time.sleep(chance.random())
            process.send_signal(signal.SIGKILL)
        now = samples.read_bytes()
        assert now.startswith(seen)
        seen = now
    assert seen.count(b"\n") < 4 * 64
    assert run(*arguments, "--out", str(killed)).exit_code == 0
    assert samples.read_bytes().startswith(seen)
    assert lines(killed) == lines(whole)
    for name in ("table.md", "results.json"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
