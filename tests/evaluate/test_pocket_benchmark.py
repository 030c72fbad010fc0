"""The pocket benchmark: results are added to a folder, and interrupted runs continue."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

import eadp
from eadp.cli import app
from eadp.evaluate import pocket_benchmark as pocket
from eadp.evaluate import pocket_report
from eadp.evaluate.journal import Journal
from eadp.method_spec import ALL_TOKENS, MethodSpec, build_specs
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


def report(unpruned, eadp, downsampled):
    """A report of as many questions as there are answers, each of which has the right answer "a"."""

    def outcome(spec, answers):
        counts = [16] * len(answers)
        return pocket.Outcome(spec, list(answers), [each == "a" for each in answers], counts, counts, counts)

    outcomes = [
        outcome(MethodSpec(ALL_TOKENS), unpruned),
        outcome(MethodSpec("eadp", 16), eadp),
        outcome(MethodSpec("downsample", 16), downsampled),
        outcome(MethodSpec("eadp", 32), unpruned),
    ]
    return pocket.PocketReport(["colour"] * len(unpruned), ["a"] * len(unpruned), outcomes)


def test_loyalty_counts_equal_answers_right_or_wrong():
    made = report("aabb", "abbc", "aaaa")
    assert [made.loyalty(each) for each in made.outcomes] == [1.0, 0.5, 0.5, 1.0]
    header, rows = pocket_report.build_rows(made)
    assert [row[header.index("loyalty")] for row in rows] == ["100.0", "50.0", "50.0", "100.0"]
    assert pocket.PocketReport(["colour"], ["a"], made.outcomes[1:2]).loyalty(made.outcomes[1]) is None


def test_hard_questions_are_those_that_downsampling_gets_wrong():
    """Down-sampling gets questions 1 and 3 wrong. EADP gets one of them right, all tokens both."""
    hard = report("aaba", "aaab", "abab").only_hard(16)
    assert [str(each.spec) for each in hard.outcomes] == ["all tokens", "eadp 16", "downsample 16"]
    assert [each.accuracy for each in hard.outcomes] == [1.0, 0.5, 0.0]
    assert [each.answers for each in hard.outcomes] == [["a", "a"], ["a", "b"], ["b", "b"]]
    (title,) = pocket_report.hard_reports(report("aaba", "aaab", "abab"))
    assert title == "the 2 of 4 questions that down-sampling to 16 tokens does not answer right"


def test_hard_questions_have_a_table_of_their_own(tmp_path):
    result = run(
        *("pocket", "--methods", "uniform", "--keep", "4", "--samples", "16", "--hard"), "--out", str(tmp_path)
    )
    assert result.exit_code == 0, result.output
    outcomes = json.loads((tmp_path / "results.json").read_text())["outcomes"]
    hard = outcomes[3]["right"].count(False)
    assert [each["method"] for each in outcomes[2:4]] == ["uniform", "downsample"]
    assert 0 < hard < 16
    text = (tmp_path / "table.md").read_text()
    assert f"The {hard} of 16 questions that down-sampling to 4 tokens does not answer right:" in text
    assert outcomes[0]["loyalty"] == 1
    assert (
        outcomes[2]["loyalty"]
        == sum(a == b for a, b in zip(outcomes[0]["answers"], outcomes[2]["answers"], strict=True)) / 16
    )


def test_the_zoo_is_every_method_with_a_budget_that_means_the_same():
    specs = {spec.method: spec for spec in build_specs(["zoo"], [16], {"trim": {"exact": False}})}
    assert set(specs) == {name for name in eadp.list_methods() if name != "none"}
    assert specs["hiprune"].options == {"exact": True}
    assert specs["trim"].options == {"exact": False}
    assert specs["sparsevlm"].options == {"budget": "after_prune"}
    assert specs["uniform"].options == {}
    assert [spec.name for spec in build_specs(["eadp:paper", "zoo"], [16])][:2] == ["eadp:paper", "cdpruner"]


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
