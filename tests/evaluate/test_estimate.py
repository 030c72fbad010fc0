"""`eadp eval --dry-run`: what would run, on how many GPUs, and for how long."""

import json

import pytest
from helpers import fake_lmms_eval
from helpers.command import run
from helpers.suite import MODEL, arguments, count, output_of

from eadp.evaluate import suites
from eadp.evaluate.suites.estimate import CellEstimate, RunEstimate, describe, estimate_run, format_duration
from eadp.evaluate.suites.suite import SUITE_NAMES
from eadp.method_spec import MethodSpec

SECONDS = 0.02
"""The time per sample that the fake harness records."""


def plan(tmp_path, name="paper-llava", **options):
    suite = suites.load_suite(name)
    benchmarks, _ = suite.select_benchmarks([], judge=False)
    specs = [MethodSpec("all tokens"), MethodSpec("eadp", 64)]
    return suites.SuitePlan(suite, "some/model", specs, benchmarks, tmp_path / "out", None, {}, **options)


def test_dry_run_runs_nothing_and_says_what_is_missing(working):
    result = run(*arguments(working, "--dry-run"))
    assert result.exit_code == 0, result.output
    output = output_of(result)
    assert "Settings: all tokens, eadp 128, topk 128, eadp 64, topk 64." in output
    assert "10 of 10 tasks are left. Each takes 1 GPU; 1 runs at the same time, on 1 GPUs in all." in output
    assert "The number of samples of GQA is not known" in output
    assert f"There are no measured times in {working / 'out'}" in output
    assert not count(working, "starts")
    assert not (working / "out").exists()


def test_dry_run_takes_times_and_sizes_from_what_was_run(working):
    assert run(*arguments(working, "--methods", "eadp", "--keep", "64")).exit_code == 0
    started = count(working, "starts")
    output = output_of(run(*arguments(working, "--dry-run")))
    samples = 3 * 3 * fake_lmms_eval.SAMPLES  # three settings are left of GQA (one task) and of MME (two tasks)
    assert "6 of 10 tasks are left" in output
    assert f"the tasks take {samples * SECONDS:.0f} s together" in output
    assert "GQA lmms-eval 3 of 5 12 0.02 1 s" in output
    assert "MME lmms-eval 3 of 5 24 0.02 1 s" in output
    assert count(working, "starts") == started


def test_dry_run_uses_the_times_of_a_trial(working):
    assert run(*arguments(working, "--samples", "2", "--methods", "eadp", "--keep", "64", out="trial")).exit_code == 0
    content = json.loads((working / "suite.json").read_text())
    for benchmark in content["benchmarks"]:
        benchmark["size"] = 900_000
    (working / "suite.json").write_text(json.dumps(content))
    output = output_of(run(*arguments(working, "--dry-run", "--measured", working / "trial", "--ranks", "2")))
    assert "Each takes 2 GPUs; 1 runs at the same time, on 2 GPUs in all." in output
    # 10 cells of 900,000 samples at 0.02 s, shared by two ranks
    assert "take 25 h 0 min together (50.0 GPU hours), and 25 h 0 min until the last one ends." in output
    limited = output_of(run(*arguments(working, "--dry-run", "--measured", working / "trial", "--samples", "500")))
    assert "GQA lmms-eval 5 of 5 500 0.02 50 s" in limited
    assert "MME lmms-eval 5 of 5 1,000 0.02 2 min" in limited


def test_answers_of_an_unfinished_cell_count(working, monkeypatch):
    monkeypatch.setenv("FAILING", "first")
    assert run(*arguments(working, "--only", "GQA", "--methods", "eadp", "--keep", "64")).exit_code == 1
    output = output_of(
        run(*arguments(working, "--only", "GQA", "--methods", "eadp", "--keep", "64", "--samples", "500", "--dry-run"))
    )
    left = 500 - fake_lmms_eval.SAMPLES // 2
    assert f"GQA lmms-eval 2 of 2 {left} 0.02 20 s" in output


def test_measured_times_must_be_of_the_same_model(working):
    assert run(*arguments(working, "--methods", "eadp", "--keep", "64", "--only", "GQA", out="trial")).exit_code == 0
    result = run(*arguments(working, "--model", "other", "--dry-run", "--measured", working / "trial"))
    assert result.exit_code == 2
    assert f"has results of {MODEL}, not of other" in output_of(result)
    result = run(*arguments(working, "--dry-run", "--measured", working / "none"))
    assert result.exit_code == 2
    assert "not a folder of results" in output_of(result)
    assert "--measured is for the estimate of --dry-run" in output_of(run(*arguments(working, "--measured", working)))


def test_time_until_the_end_is_that_of_tasks_side_by_side(tmp_path):
    cells = plan(tmp_path, samples=100).cells()[:5]
    estimate = RunEstimate([CellEstimate(cell, False, 100, 36.0) for cell in cells], 2, 2, tmp_path)
    assert estimate.busy_seconds == 5 * 3600
    assert estimate.wall_seconds == 3 * 3600
    sentences = " ".join(describe(estimate))
    assert "2 run at the same time, on 4 GPUs in all" in sentences
    assert "take 5 h 0 min together (10.0 GPU hours), and 3 h 0 min until" in sentences


def test_sizes_of_the_paper_benchmarks_are_known_but_for_mmbench_1_1(tmp_path):
    unknown = {
        (name, benchmark.name)
        for name in SUITE_NAMES
        for benchmark in suites.load_suite(name).benchmarks
        if not benchmark.size
    }
    assert unknown == {
        ("paper-llava", "MMBench-V1.1"),
        ("paper-llava", "MMBench-CN-V1.1"),
        ("paper-qwen", "MMBench"),
        ("paper-qwen", "MMBench-CN"),
    }
    left = {each.cell.benchmark.name: each.left for each in estimate_run(plan(tmp_path), 1, 1).cells}
    assert left["POPE"] == 9000
    assert {each.left for each in estimate_run(plan(tmp_path, samples=300), 1, 1).cells} == {300}
    videos = estimate_run(plan(tmp_path, "paper-video", samples=300), 1, 1).cells
    assert {each.cell.benchmark.name: each.left for each in videos}["MVBench"] == 4000  # 20 tasks of 200


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "1 h 0 min"), (12000, "3 h 20 min"), (200000, "2 d 7 h")],
)
def test_durations_are_readable(seconds, text):
    assert format_duration(seconds) == text
