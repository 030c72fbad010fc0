"""Sweeps: what is run, continuing after a kill, and the report."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from helpers import fake_lmms_eval
from typer.testing import CliRunner

from eadp import paper
from eadp.cli import app
from eadp.evaluate import compare, pocket_benchmark, sweep, sweep_report
from eadp.evaluate.scores import ScoredRun


def run(*arguments):
    result = CliRunner().invoke(app, ["sweep", *map(str, arguments)], env={"COLUMNS": "200"})
    return result, " ".join(result.output.replace("│", " ").split())


def planned(*texts, combined=False, options=None):
    return sweep.build_plan("eadp", 16, options or {}, sweep.parse_values(texts), combined)


def test_sweep_changes_one_setting_at_a_time():
    plan = planned("beta=0,2,5", "dispersion=entropy,variance")
    assert [[point.changed for point in block] for block in plan.blocks] == [
        [{"beta": 0}, {"beta": 2}, {"beta": 5}],
        [{"dispersion": "entropy"}, {"dispersion": "variance"}],
    ]
    # β = 2 and entropy are the defaults and are run once.
    assert [setting.options for setting in plan.specs] == [{}, {"beta": 0}, {"beta": 5}, {"dispersion": "variance"}]


def test_sweep_over_every_combination():
    plan = planned("beta=0,2", "mu=0,1", combined=True)
    (block,) = plan.blocks
    assert [point.changed for point in block] == [{"beta": b, "mu": m} for b in (0, 2) for m in (0, 1)]
    assert len(plan.specs) == 5


def test_sweep_over_budgets_and_of_other_methods():
    plan = planned("keep=8,16,0.5")
    assert [setting.keep for setting in plan.specs] == [16, 8, 0.5]
    plan = sweep.build_plan("fastv", 0.25, {}, sweep.parse_values(["layers=[1],[3]"]))
    assert [setting.options["layers"] for setting in plan.specs[1:]] == [(1,), (3,)]


def test_options_of_the_whole_sweep():
    plan = planned("beta=0,5", options={"mu": 0.3})
    assert plan.default.options == {"mu": 0.3}
    assert plan.blocks[0][0].spec.options == {"mu": 0.3, "beta": 0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--over beta=0,0.5,2"),
        (("--over", "beta"), "written beta=0,0.5,2, got 'beta'"),
        (("--over", "betta=1"), "eadp has no setting betta (did you mean beta?); it has"),
        (("--over", "beta=-1"), "beta must lie in [0, 1000]"),
        (("--over", "beta=many"), "beta of eadp is a number, 2.0 by default, got 'many'"),
        (("--over", "dispersion=chaos"), "unknown dispersion 'chaos'; known: entropy"),
        (("--over", "beta=1", "--over", "beta=2"), "beta is given twice"),
        (("--over", "beta=1", "--keep", "8,16"), "--over keep=8,16,32"),
        (("--over", "beta=1", "--method", "edap"), "unknown method 'edap'"),
        (("imagenet", "--over", "beta=1"), "unknown suite"),
        (("--paper", "--grid"), "one setting at a time"),
    ],
)
def test_errors_say_what_would_be_right(tmp_path, arguments, message):
    result, output = run(*arguments, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert message in output
    assert not (tmp_path / "out").exists()


def test_values_of_the_paper_are_settings_of_the_method():
    values = sweep.paper_values()
    assert values["beta"] == [0, 0.5, 2, 5, 10]
    assert set(values) == {"mu", "q", "beta", "tau", "gamma", "smoothing", "aggregation", "dispersion"}
    assert len(sweep.build_plan("eadp", 16, {}, values).specs) == 28  # 35 rows, the default in all eight groups
    assert sweep.paper_averages()["q", 0.3] == 68.6
    assert len(sweep.paper_averages()) == 35
    allocations = {row.setting for row in paper.table("dynamic-allocation").rows}
    assert all(sweep.build_plan("eadp", 16, {}, sweep.parse_values([text])) for text in allocations)


def made(combined=False):
    """A sweep with known scores: 80 of 100 answers are right, but only 60 with β = 0."""
    plan = planned("beta=0,2,5", "mu=0.5,1", combined=combined)
    right = {s.key: 60 if s.options.get("beta") == 0 else 80 for s in plan.specs}
    runs = {key: ScoredRun.from_scores(key, [n < first for n in range(100)]) for key, first in right.items()}
    return plan, sweep.collect_results(plan, runs)


def test_each_value_is_compared_with_the_default():
    _, (beta, mu) = made()
    assert [tried.score[0] for tried in beta] == pytest.approx([60, 80, 80])
    assert [tried.is_default for tried in beta] == [False, True, False]
    assert beta[0].difference.difference == pytest.approx(-20)
    assert beta[0].difference.significant
    assert not mu[1].difference.significant
    assert beta[1].score[1:] == pytest.approx((71.1, 86.7), abs=0.1)


def test_report_has_significance_and_the_averages_of_the_paper(tmp_path):
    plan, blocks = made()
    lines = [line for block in sweep_report.build_rows(blocks, with_paper=True) for line in block]
    assert lines[0][0] == "beta=0"
    assert lines[0][3] == "-20.0"
    assert lines[0][5:] == ["yes", "–", "67.8"]
    assert lines[1][3] == "default"
    written = sweep_report.write(plan, {"pocket": blocks}, tmp_path)
    assert [path.name for path in written] == ["sweep.json", "sweep.md", "sweep-pocket.png"]
    content = json.loads(written[0].read_text())
    assert content["benchmarks"]["pocket"][0][0]["against_default"]["significant"] is True
    assert "| beta=0 | 60.0 |" in written[1].read_text()
    assert written[2].read_bytes().startswith(b"\x89PNG")


def test_hard_samples_are_those_of_each_points_own_budget(tmp_path):
    """100 samples: down-sampling to 16 tokens answers the first 90 right, to 8 the first 50."""
    plan = sweep.build_plan("eadp", 16, {}, sweep.parse_values(["keep=8,16"]), hard=True)
    assert [spec.key for spec in plan.all_specs[-2:]] == ["downsample keep=16", "downsample keep=8"]
    first_right = {"eadp keep=16": 95, "eadp keep=8": 75, "downsample keep=16": 90, "downsample keep=8": 50}
    runs = {key: ScoredRun.from_scores(key, [n < first for n in range(100)]) for key, first in first_right.items()}
    blocks = sweep.collect_results(plan, runs)
    assert [result.hard for result in blocks[0]] == [(50.0, 50), (50.0, 10)]
    assert sweep_report.build_header(blocks)[-1] == "hard samples"
    assert [row[-1] for row in next(sweep_report.build_rows(blocks))] == ["50.0 of 50", "50.0 of 10"]
    written = sweep_report.write(plan, {"pocket": blocks}, tmp_path)
    assert json.loads(written[0].read_text())["benchmarks"]["pocket"][0][1]["hard"] == {"score": 50.0, "samples": 10}
    assert "Hard: samples that downsample" in written[1].read_text()


def test_where_nothing_is_hard(tmp_path):
    plan = sweep.build_plan("eadp", 16, {}, sweep.parse_values(["beta=0,2"]), hard=True)
    runs = {spec.key: ScoredRun.from_scores(spec.key, [True] * 10) for spec in plan.all_specs}
    blocks = sweep.collect_results(plan, runs)
    assert [result.hard for result in blocks[0]] == [None, None]
    assert "hard samples" not in sweep_report.build_header(blocks)


def test_harness_without_scores_per_sample_has_only_its_reported_figure(tmp_path):
    plan = planned("beta=0,2")
    blocks = sweep.collect_results(plan, {}, {plan.default.key: 1500.0})
    assert list(sweep_report.build_rows(blocks)) == [
        [["beta=0", "–", "–", "–", "–", "", "", "–"], ["beta=2", "1500.0", "–", "–", "default", "", "", "–"]]
    ]
    assert len(sweep_report.write(plan, {"MME": blocks}, tmp_path)) == 3


def test_combinations_are_reported_and_plotted(tmp_path):
    plan, blocks = made(combined=True)
    assert len(blocks[0]) == 6
    assert "beta=0, mu=1" in sweep_report.as_markdown(plan, "pocket", blocks)
    assert sweep_report.plot(plan, "pocket", blocks, tmp_path / "grid.png").exists()


def test_sweep_on_a_suite_gives_a_table_per_benchmark(working):
    """The table has what the harness reports, and the paired difference of the scores that it logs."""
    given = ("--over", "keep=32,96", "--keep", "64", "--only", "gqa,mme", "--python", working / "python")
    result, output = run(working / "suite.json", *given, "--out", working / "out")
    assert result.exit_code == 0, result.output
    assert "GQA: eadp 64, 12 samples" in output
    assert "MME: eadp 64, 24 samples" in output
    content = json.loads((working / "out" / "sweep.json").read_text())
    few, more = content["benchmarks"]["GQA"][0]

    def right(keep):
        return sum(fake_lmms_eval.right("first", number, "eadp", keep) for number in range(fake_lmms_eval.SAMPLES))

    assert few["figure"] == few["score"] == pytest.approx(100 * right(32) / fake_lmms_eval.SAMPLES)
    assert more["against_default"]["difference"] == pytest.approx(
        100 * (right(96) - right(64)) / fake_lmms_eval.SAMPLES
    )
    equal = [
        fake_lmms_eval.right("first", number, "eadp", 32) == fake_lmms_eval.right("first", number, "none", 0)
        for number in range(fake_lmms_eval.SAMPLES)
    ]
    assert few["loyalty"] == pytest.approx(sum(equal) / len(equal))
    assert few["hard"] == more["hard"] is None
    assert content["benchmarks"]["MME"][0][0]["figure"] < 2 < content["benchmarks"]["MME"][0][0]["score"]
    assert (working / "out" / "sweep-MME.png").exists()
    a, b = compare.find_pairs(f"{working / 'out'}:keep=32 GQA", ":keep=96 GQA")[0]
    assert compare.compare_runs(a, b).difference == pytest.approx(
        100 * (right(32) - right(96)) / fake_lmms_eval.SAMPLES
    )


def test_hard_samples_of_a_suite(working):
    given = ("--over", "keep=32,96", "--keep", "64", "--only", "gqa", "--python", working / "python", "--hard")
    result, output = run(working / "suite.json", *given, "--out", working / "out")
    assert result.exit_code == 0, result.output
    assert "hard samples" in output
    (few, _) = json.loads((working / "out" / "sweep.json").read_text())["benchmarks"]["GQA"][0]

    def right(method, number):
        return fake_lmms_eval.right("first", number, method, 32)

    hard = [number for number in range(fake_lmms_eval.SAMPLES) if not right("downsample", number)]
    expected = 100 * sum(right("eadp", number) for number in hard) / len(hard)
    assert few["hard"] == {"score": pytest.approx(expected), "samples": len(hard)}


ARGUMENTS = ("--over", "beta=0,5", "--keep", "8", "--samples", "20", "--hard")


def test_repeated_sweep_reads_its_folder(tmp_path, monkeypatch):
    first, output = run(*ARGUMENTS, "--out", tmp_path)
    assert first.exit_code == 0, first.output
    assert "pocket: eadp 8, 20 samples" in output
    assert "hard samples" in output
    found = (tmp_path / "sweep.json").read_text()

    def fail_to_load(*arguments, **options):
        raise AssertionError("all answers are in the folder")

    monkeypatch.setattr(pocket_benchmark, "load_model", fail_to_load)
    second, again = run(*ARGUMENTS, "--out", tmp_path)
    assert second.exit_code == 0
    assert (tmp_path / "sweep.json").read_text() == found
    assert output.split("samples", 1)[1] == again.split("samples", 1)[1]


@pytest.mark.slow
def test_killed_sweep_ends_with_the_same_table(tmp_path):
    whole, _ = run(*ARGUMENTS, "--out", tmp_path / "whole")
    assert whole.exit_code == 0
    killed = tmp_path / "killed"
    command = [sys.executable, "-c", "from eadp.cli import app; app()", "sweep", *ARGUMENTS, "--out", str(killed)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        while not (killed / "samples.jsonl").exists() or not (killed / "samples.jsonl").read_text().count("\n"):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert not (killed / "sweep.json").exists()
    resumed, _ = run(*ARGUMENTS, "--out", killed)
    assert resumed.exit_code == 0
    for name in ("sweep.json", "sweep.md"):
        assert (killed / name).read_text() == (tmp_path / "whole" / name).read_text()
