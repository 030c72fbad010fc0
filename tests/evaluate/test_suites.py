"""Suites: the paper's benchmarks as data, and the runner with a fake harness."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest
from helpers import ROOT, fake_lmms_eval
from helpers.command import run
from helpers.suite import MODEL, arguments, count, output_of, wait_until_dead

from eadp import paper
from eadp.cli.evaluate import complete_ray_address, parse_pythons
from eadp.evaluate import suites
from eadp.evaluate.journal import Journal
from eadp.evaluate.suites import cell_run, harness
from eadp.evaluate.suites.harness import Cell
from eadp.evaluate.suites.suite import Benchmark
from eadp.method_spec import ALL_TOKENS, MethodSpec
from eadp.utils.die_with_parent import ANY_PARENT, die_with_parent


def hits(task, method, keep, samples=fake_lmms_eval.SAMPLES):
    return sum(fake_lmms_eval.right(task, number, method, keep) for number in range(samples)) / samples


def test_table_has_our_results_and_those_of_the_paper(working):
    result = run(*arguments(working))
    assert result.exit_code == 0, result.output
    lines = (working / "out" / "table.md").read_text().splitlines()
    head, _, *rows = [line.split(" | ")[1:] for line in lines if line.startswith("|")]
    assert [each.strip("| ") for each in head] == [
        *("sent", "method", "GQA", "paper", "MME", "paper", "Avg. of 2", "paper"),
        "loyalty",
    ]
    assert [row[1] for row in rows] == ["all tokens", "EADP", "topk", "EADP", "topk"]
    assert [row[0] for row in rows] == ["600", "152", "152", "88", "88"]
    assert [line.split(" | ")[0].strip("| ") for line in lines if line.startswith("|")] == [
        *("patches", "---", "576", "128", "128", "64", "64"),
    ]
    printed = paper.table("llava-1.5").find_row("eadp", 64).printed
    gqa, mme = 100 * hits("first", "eadp", 64), hits("one", "eadp", 64) + hits("two", "eadp", 64)
    ours = rows[3]
    assert ours[2:6] == [f"{gqa:.1f}", printed["GQA"], f"{mme:.1f}", printed["MME"]]
    assert float(ours[6]) == pytest.approx((gqa + mme / 20) / 2, abs=0.051)
    assert float(ours[7]) == pytest.approx((float(printed["GQA"]) + float(printed["MME"]) / 20) / 2, abs=0.051)
    assert [cell.strip("| ") for cell in rows[2][2:-1]][1::2] == ["–"] * 3  # the paper has no results of topk
    equal = [
        fake_lmms_eval.right(task, number, "eadp", 64) == fake_lmms_eval.right(task, number, "none", 0)
        for task in ("first", "one", "two")
        for number in range(fake_lmms_eval.SAMPLES)
    ]
    assert rows[0][8].strip(" |") == "100.0"
    assert float(ours[8].strip(" |")) == pytest.approx(100 * sum(equal) / len(equal), abs=0.051)
    assert "left out: POPE, which needs an online judge" in output_of(result)
    cells = json.loads((working / "out" / "results.json").read_text())["cells"]
    assert {each["answers"] for each in cells} == {fake_lmms_eval.SAMPLES, 2 * fake_lmms_eval.SAMPLES}
    assert {each["sent"] - each["tokens"] for each in cells} == {fake_lmms_eval.NEWLINES}


def test_hard_samples_are_those_that_downsampling_gets_wrong(working):
    result = run(*arguments(working, "--methods", "eadp", "--keep", "64", "--only", "GQA", "--hard"))
    assert result.exit_code == 0, result.output
    samples = range(fake_lmms_eval.SAMPLES)
    hard = [number for number in samples if not fake_lmms_eval.right("first", number, "downsample", 64)]
    right = [fake_lmms_eval.right("first", number, "eadp", 64) for number in hard]
    assert 0 < sum(right) < len(right) < fake_lmms_eval.SAMPLES
    text = (working / "out" / "table.md").read_text()
    assert f"| eadp 64 | {100 * sum(right) / len(right):.1f} of {len(right)} |" in text
    assert f"| downsample 64 | 0.0 of {len(right)} |" in text
    assert "Hard samples only" in output_of(result)


def test_finished_cells_are_not_run_again_and_more_can_be_added(working):
    run(*arguments(working, "--only", "GQA"))
    first = (working / "out" / "table.md").read_text()
    assert count(working, "starts") == 5
    run(*arguments(working, "--only", "GQA"))
    assert count(working, "starts") == 5
    assert (working / "out" / "table.md").read_text() == first
    assert run(*arguments(working, "--methods", "eadp,uniform", "--only", "GQA,POPE")).exit_code == 0
    assert count(working, "starts") == 5 + 2 + 5


def test_failed_benchmark_is_named_and_the_others_continue(working, monkeypatch):
    monkeypatch.setenv("BROKEN", "first")
    result = run(*arguments(working, "--methods", "eadp", "--keep", "64"))
    assert result.exit_code == 1
    assert "failed: eadp 64 on GQA: lmms-eval ended with 3" in output_of(result)
    assert "the disk of task is full" in output_of(result)
    assert count(working, "answered") == 2 * 2 * fake_lmms_eval.SAMPLES
    monkeypatch.delenv("BROKEN")
    result = run(*arguments(working, "--methods", "eadp", "--keep", "64"))
    assert result.exit_code == 0
    assert count(working, "answered") == 2 * 3 * fake_lmms_eval.SAMPLES


def forget(working, *patterns):
    """Remove files of a run, as if its runner had been killed before it wrote them."""
    for pattern in patterns:
        for path in list((working / "out").glob(pattern)):
            path.unlink()


def test_lmms_eval_that_fails_with_exit_code_0_is_noticed(working, monkeypatch):
    one = ("--methods", "eadp", "--keep", "64", "--only", "GQA")
    monkeypatch.setenv("FAILING", "first")
    result = run(*arguments(working, *one))
    assert result.exit_code == 1
    assert "failed: eadp 64 on GQA: lmms-eval ended with 0 but wrote no results, so it failed" in output_of(result)
    assert "Error during evaluation: the scorer has no memory" in output_of(result)
    assert Journal.read(working / "out")[1] == []
    monkeypatch.delenv("FAILING")
    assert run(*arguments(working, *one)).exit_code == 0
    assert count(working, "answered") == 2 * fake_lmms_eval.SAMPLES


def test_results_of_an_earlier_attempt_do_not_hide_a_failure(working, monkeypatch):
    one = ("--methods", "eadp", "--keep", "64", "--only", "GQA")
    assert run(*arguments(working, *one)).exit_code == 0
    forget(working, "samples.jsonl", "*/*/record.json", "*/*/started.json")
    monkeypatch.setenv("FAILING", "first")
    for _ in range(2):
        result = run(*arguments(working, *one))
        assert result.exit_code == 1
        assert "wrote no results, so it failed" in output_of(result)


@pytest.mark.parametrize("lost", [("samples.jsonl",), ("samples.jsonl", "*/*/record.json")])
def test_cell_that_ended_before_its_runner_died_is_not_run_again(working, lost):
    assert run(*arguments(working, "--only", "GQA")).exit_code == 0
    table, started = (working / "out" / "table.md").read_text(), count(working, "starts")
    forget(working, *lost)
    assert run(*arguments(working, "--only", "GQA")).exit_code == 0
    assert count(working, "starts") == started
    assert (working / "out" / "table.md").read_text() == table


@pytest.mark.parametrize("lost", ["*_samples_*.jsonl", "*_results.json"])
def test_cell_whose_results_are_not_complete_is_run_again_without_new_answers(working, lost):
    one = ("--methods", "eadp", "--keep", "64", "--only", "GQA")
    assert run(*arguments(working, *one)).exit_code == 0
    started = count(working, "starts")
    forget(working, "samples.jsonl", "*/*/record.json", f"*/*/harness/*/{lost}")
    assert run(*arguments(working, *one)).exit_code == 0
    assert count(working, "starts") == 2 * started
    assert count(working, "answered") == 2 * fake_lmms_eval.SAMPLES


def test_harness_that_scores_more_samples_than_were_answered_is_noticed(working):
    python = working / "python"
    python.write_text(python.read_text().replace('"effective": len(each)', '"effective": len(each) + 1'))
    result = run(*arguments(working, "--methods", "eadp", "--keep", "64", "--only", "GQA"))
    assert result.exit_code == 1
    assert "lmms-eval scored 13 samples of first, but the model answered 12" in output_of(result)


def test_attempt_waits_for_the_processes_of_a_killed_one(working, monkeypatch):
    """On a cluster, the next attempt can start before the harness of the last one has died."""
    journal = working / "out" / "eadp_keep=64" / "GQA" / "journal"
    journal.mkdir(parents=True)
    holder = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True)"
    command = [sys.executable, "-c", f"{holder}; time.sleep(float(sys.argv[2]))", str(journal / "samples.jsonl")]
    one = ("--methods", "eadp", "--keep", "64", "--only", "GQA")
    with subprocess.Popen([*command, "600"], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        monkeypatch.setattr(cell_run, "RELEASE_SECONDS", 0.1)
        result = run(*arguments(working, *one))
        assert result.exit_code == 1
        assert f"another process keeps writing to {journal}" in output_of(result)
        process.kill()
    monkeypatch.undo()
    with subprocess.Popen([*command, "1.5"], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert run(*arguments(working, *one)).exit_code == 0


def test_address_of_ray_may_be_left_out():
    for given, completed in (
        ("--ray", "--ray auto"),
        ("--ray --dry-run paper-llava", "--ray auto --dry-run paper-llava"),
        ("--ray paper-llava", "--ray auto paper-llava"),
        ("paper-llava --ray 10.0.0.1:6379", "paper-llava --ray 10.0.0.1:6379"),
        ("--ray auto paper-llava", "--ray auto paper-llava"),
        ("--ray=10.0.0.1:6379", "--ray=10.0.0.1:6379"),
    ):
        assert complete_ray_address(given.split()) == completed.split()


def test_interpreters_are_given_for_all_machines_or_by_node():
    assert parse_pythons([]) == (None, {})
    given = ["/a/python", "n1=/b/python", "10.0.0.2=/c/python"]
    assert parse_pythons(given) == ("/a/python", {"n1": "/b/python", "10.0.0.2": "/c/python"})
    assert parse_pythons(["/envs/a=b/python"]) == ("/envs/a=b/python", {})
    with pytest.raises(ValueError, match="one path for all machines, got /a and /b"):
        parse_pythons(["/a", "/b"])


def test_samples_of_two_methods_can_be_compared(working):
    assert run(*arguments(working, "--only", "GQA", "--samples", "20")).exit_code == 0
    folder = working / "out"
    result = run("compare", folder / "eadp_keep=128" / "GQA", folder / "eadp_keep=64" / "GQA")
    assert result.exit_code == 0, result.output
    difference = 100 * (hits("first", "eadp", 128, 20) - hits("first", "eadp", 64, 20))
    assert difference > 0
    assert f"{difference:.1f} points" in output_of(result)


@pytest.mark.slow
def test_killed_runs_end_with_the_same_table(working):
    assert run(*arguments(working, out="whole")).exit_code == 0
    (working / "answered").unlink()
    chance = random.Random(1)
    for goal in (3, 60, 120):
        with subprocess.Popen(
            [sys.executable, "-m", "eadp", *arguments(working, out="killed")], stdout=subprocess.DEVNULL
        ) as process:
            while count(working, "answered") < goal:
                assert process.poll() is None
                time.sleep(0.05)
            refused = run(*arguments(working, out="killed"))
            assert refused.exit_code == 2
            assert "another run is writing" in output_of(refused)
            time.sleep(0.3 * chance.random())
            process.send_signal(signal.SIGKILL)
        wait_until_dead(working)
    result = run(*arguments(working, out="killed"))
    assert result.exit_code == 0, result.output
    assert (working / "killed" / "table.md").read_bytes() == (working / "whole" / "table.md").read_bytes()
    answered = (working / "answered").read_text().splitlines()
    assert len(answered) == len(set(answered))
    records = [Journal.read(path.parent)[1] for path in (working / "killed").glob("*/*/journal/manifest.json")]
    assert sorted(map(len, records)) == 5 * [fake_lmms_eval.SAMPLES] + 5 * [2 * fake_lmms_eval.SAMPLES]


@pytest.mark.parametrize("table", paper.tables("accuracy"), ids=lambda table: table.model)
def test_every_benchmark_of_the_paper_has_a_task(table):
    suite = suites.load_suite(
        "paper-" + next(name for name in ("video", "llava", "qwen") if name in table.model.lower())
    )
    measured = {benchmark.name for benchmark in suite.benchmarks}
    assert set(table.columns) - {"average"} <= measured
    assert suites.plan_specs(["eadp"], [], {}, table.model, table)[1].keep == max(
        row.keep for row in table.rows if row.method == "eadp"
    )


def test_paper_tables_are_found_by_any_name_of_the_model():
    for name in ("llava-1.5-7b", "llava-hf/llava-1.5-7b-hf", "/data/models/llava-1.5-7b-hf"):
        assert suites.find_paper_table(name).model == "LLaVA-1.5-7B"
    assert suites.find_paper_table("/data/models/mine") is None


def test_suites_set_the_resolutions_and_frames_of_the_paper():
    qwen, video = suites.load_suite("paper-qwen"), suites.load_suite("paper-video")
    assert qwen.arguments_for("Qwen/Qwen2.5-VL-7B-Instruct") == {"resolution": 1008, "square": "pad"}
    assert qwen.arguments_for("/models/Qwen3-VL-8B-Instruct") == {"resolution": 1024, "square": "pad"}
    llava = suites.load_suite("paper-llava")
    assert llava.arguments_for("llava-hf/llava-1.5-7b-hf") == {"question": "released"}
    assert llava.arguments_for("llava-hf/llava-v1.6-vicuna-7b-hf") == {
        "question": "released",
        "resolution": 672,
        "square": "crops",
    }
    assert video.arguments_for("/models/LLaVA-Video-7B-Qwen2") == {"frames": 64, "llava_video": True}


def test_arguments_of_a_suite_can_be_changed_and_removed(tmp_path):
    plan = suites.SuitePlan(
        suites.load_suite("paper-qwen"),
        "Qwen2.5-VL-7B",
        [],
        [],
        tmp_path,
        None,
        {"square": "stretch", "resolution": None},
    )
    assert plan.model_arguments == {"square": "stretch"}


def test_variant_of_a_benchmark_runs_only_if_it_is_named():
    for name, default, other in (
        ("paper-qwen", ("MMBench", "MMBench_DEV_EN_V11"), ("MMBench-V1.0", "MMBench_DEV_EN")),
        ("paper-llava", ("MMBench", "mmbench_en_dev_static"), ("MMBench-V1.1", "MMBench_DEV_EN_V11")),
    ):
        suite = suites.load_suite(name)
        run, left = suite.select_benchmarks([], judge=True)
        assert default in [(each.name, *each.tasks) for each in run]
        assert other[0] not in [each.name for each in [*run, *left]]
        assert [(each.name, *each.tasks) for each in suite.select_benchmarks([other[0]], judge=False)[0]] == [other]


QWEN = Benchmark("HallusionBench", "vlmeval", ("HallusionBench", "Mine:ImageMCQDataset"), ("split=Overall|?Acc",))


def test_command_line_for_vlmeval(tmp_path):
    cell = Cell(QWEN, MethodSpec("eadp", 0.25, {"mu": 0.3}), "some/model", tmp_path, {"resolution": 1008}, samples=5)
    assert harness.build_command(cell, "python") == [
        *("python", "-m", "eadp", "vlmeval", "--model", "some/model", "--data", "HallusionBench,Mine:ImageMCQDataset"),
        *("--method", "eadp", "--out", str(tmp_path / "harness"), "--journal", str(tmp_path / "journal")),
        *("--keep", "0.25", "--set", "mu=0.3", "--set", "resolution=1008", "--limit", "5"),
        *("--judge", "exact_matching"),
    ]
    unpruned = Cell(QWEN, MethodSpec(ALL_TOKENS), "some/model", tmp_path, {}, judge=True)
    started = harness.build_command(unpruned, "python")
    assert started[started.index("--method") + 1] == "none"
    assert not {"--keep", "--judge", "--limit"} & set(started)


def test_only_lmms_eval_runs_with_several_ranks(tmp_path):
    own = Benchmark("GQA", "lmms-eval", ("gqa",), ("exact_match,none",))
    started = harness.build_command(
        Cell(own, MethodSpec(ALL_TOKENS), "some/model", tmp_path, {}, batch=4, ranks=2), "python"
    )
    assert started[:6] == ["python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--no-python"]
    rank = started[started.index("--no-python") + 1 :]
    assert rank[:5] == die_with_parent(signal.SIGKILL, ANY_PARENT)
    assert rank[5:8] == ["python", "-m", "lmms_eval"]
    assert rank[rank.index("--verbosity") + 1] == "DEBUG"  # otherwise a rank that failed would end with 0
    with pytest.raises(ValueError, match="one process, prompt by prompt"):
        harness.build_command(Cell(QWEN, MethodSpec(ALL_TOKENS), "some/model", tmp_path, {}, ranks=2), "python")
    with pytest.raises(ValueError, match="allows no commas"):
        harness.build_command(Cell(own, MethodSpec(ALL_TOKENS), "some/model", tmp_path / "a,b", {}), "python")


def test_figures_of_vlmeval_are_read_from_its_status_file(tmp_path):
    cell = Cell(QWEN, MethodSpec(ALL_TOKENS), "some/model", tmp_path, {})
    status = cell.output / "model" / "status.json"
    status.parent.mkdir(parents=True)
    states = {"HallusionBench": {"metrics": {"split=Overall|aAcc": 60.0, "split=VD|aAcc": 1.0}}}
    states["Mine"] = {"metrics": {"split=Overall|fAcc": 40.0}}
    status.write_text(json.dumps({"datasets": states}))
    assert QWEN.value(harness.read_figures(cell)) == 50
    states["Mine"] = {"error_message": "no such file"}
    status.write_text(json.dumps({"datasets": states}))
    with pytest.raises(ValueError, match="did not score Mine:ImageMCQDataset: no such file"):
        harness.read_figures(cell)


def test_metric_must_match_exactly_one_figure():
    with pytest.raises(ValueError, match="matches 2 figures of HallusionBench"):
        QWEN.value({"HallusionBench": {"split=Overall|aAcc": 1.0, "split=Overall|fAcc": 2.0}})
    with pytest.raises(ValueError, match="reported no figures of HallusionBench"):
        QWEN.value({})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("imagenet",), "known: pocket, paper-llava, paper-qwen, paper-video"),
        (("paper-llava", "--only", "ImageNet"), "it has VQAv2, VQAv2-val, GQA"),
        (("paper-llava", "--model", "mine"), "give --keep, or a model of the paper with --beside"),
        (("paper-llava", "--beside", "mine"), "no results of 'mine'"),
        (("paper-video",), "give one with --model"),
        (("paper-llava", "--python", "/nowhere/python"), "not a working Python interpreter"),
        (("paper-llava", "--python", sys.executable), "pip install 'eadp[lmms-eval]'"),
        (("paper-llava", "--suite", "pocket"), "give one suite"),
        (("pocket", "--only", "GQA"), "pocket runs without a harness: leave out --only"),
        (("pocket", "--ray", "--dry-run"), "pocket runs without a harness: leave out --ray, --dry-run"),
        (("paper-llava", "--gpus-per-task", "1"), "--gpus-per-task is for the tasks of a cluster: give --ray"),
        (("paper-llava", "--python", "n1=/python"), "--python n1=… is for a node of a cluster: give --ray"),
    ],
)
def test_errors_are_raised_before_anything_runs(tmp_path, given, message):
    result = run("eval", *given, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert message in output_of(result)
    assert not (tmp_path / "out").exists()


def test_error_for_a_malformed_suite_says_what_it_needs(tmp_path):
    path = tmp_path / "suite.json"
    for content, message in (
        ("{", "is not a suite"),
        ("{}", "'benchmarks'"),
        ('{"benchmarks": [{"name": "a", "tasks": ["b"], "metrics": ["c"], "harness": "own"}]}', "got 'own'"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            suites.load_suite(str(path))


def test_folder_of_another_suite_is_an_error(working):
    assert run(*arguments(working, "--only", "GQA", "--methods", "eadp", "--keep", "64")).exit_code == 0
    changed = json.loads((working / "suite.json").read_text())
    changed["benchmarks"][0]["scale"] = 1
    (working / "suite.json").write_text(json.dumps(changed))
    result = run(*arguments(working, "--only", "GQA", "--methods", "eadp", "--keep", "64"))
    assert result.exit_code == 2
    assert "as another suite measured it" in output_of(result)
    manifest, _ = Journal.read(working / "out")
    assert manifest["settings"]["model"] == MODEL


def test_docs_list_the_suites():
    page = ROOT / "docs" / "guides" / "evaluate.md"
    assert run("suites", "--markdown").output.strip() in page.read_text()
