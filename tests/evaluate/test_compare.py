"""Paired comparison of two runs on the same samples."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from eadp.cli import app
from eadp.evaluate import compare, scores
from eadp.evaluate.journal import Journal
from eadp.evaluate.pocket_benchmark import Outcome
from eadp.method_spec import ALL_TOKENS, MethodSpec

RIGHT = {"eadp keep=0.125": 90, "topk keep=0.125": 80, "topk keep=0.0625": 79}


def pocket_like(folder, right=RIGHT, total=100, expected="yes"):
    """A journal as `eadp eval pocket` writes it: the first `right` of `total` answers are right."""
    with Journal.open(folder, {"benchmark": "pocket"}) as journal:
        for setting, first in right.items():
            about = {"method": setting.split()[0], "kind": "colour", "expected": expected}
            journal.extend((f"{setting}/{n}", {**about, "right": n < first}) for n in range(total))
    return folder


def harness_like(folder, values):
    """A journal as the harness plugins write it: scores by task and sample."""
    with Journal.open(folder, {"harness": "some"}) as journal:
        for task, each in values.items():
            journal.extend((f"{task}/test/{n}/abc", {"task": task, "score": v}) for n, v in enumerate(each))
    return folder


def run(*arguments):
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)], env={"COLUMNS": "200"})
    return result, " ".join(result.output.replace("│", " ").split())


def test_large_difference_is_significant(tmp_path):
    folder = pocket_like(tmp_path / "run")
    result, output = run(f"{folder}:eadp keep=0.125", ":topk keep=0.125")
    assert result.exit_code == 0
    assert "eadp keep=0.125 is 10.0 points above topk keep=0.125 on the same 100 samples" in output
    assert "significant at 95 %, uncorrected" in output
    _, back = run(f"{folder}:topk keep=0.125", ":eadp")
    assert "eadp keep=0.125 is 10.0 points above topk keep=0.125" in back
    assert "-10.0" in back


def test_small_difference_is_not_significant(tmp_path):
    folder = pocket_like(tmp_path / "run")
    _, output = run(f"{folder}:topk keep=0.125", ":topk keep=0.0625")
    assert "cannot be told apart" in output
    assert "+1.0 points" in output


def test_equal_answers_are_reported_as_equal(tmp_path):
    folder = pocket_like(tmp_path / "run")
    assert "score the same on each" in run(f"{folder}:eadp", ":eadp")[1]


def test_two_folders_are_compared_run_by_run(tmp_path):
    a = pocket_like(tmp_path / "a")
    b = pocket_like(tmp_path / "b", {**RIGHT, "eadp keep=0.125": 60, "only here": 1})
    found = [compare.compare_runs(*pair) for pair in compare.find_pairs(str(a), str(b))]
    assert [each.difference for each in found] == [pytest.approx(30), 0, 0]
    assert found[0].a == f"{a}:eadp keep=0.125"
    assert found[0].significant
    assert not found[1].significant


def test_words_pair_two_methods_at_each_budget(tmp_path):
    folder = pocket_like(tmp_path / "run", {**RIGHT, "eadp keep=0.0625": 90, "all tokens": 95})
    found = [(a.name, b.name) for a, b in compare.find_pairs(f"{folder}:eadp", ":topk")]
    assert found == [("eadp keep=0.125", "topk keep=0.125"), ("eadp keep=0.0625", "topk keep=0.0625")]


def test_single_runs_are_paired_whatever_their_names(tmp_path):
    a = pocket_like(tmp_path / "a", {"eadp keep=32": 90})
    b = pocket_like(tmp_path / "b", {"topk keep=32": 90})
    assert compare.compare_runs(*compare.find_pairs(str(a), str(b))[0]).difference == 0


def test_harness_journals_with_scores_in_any_range(tmp_path):
    chance = np.random.default_rng(0)
    points = chance.normal(50, 10, 400)
    a = harness_like(tmp_path / "a", {"mmvet": list(points + chance.normal(2, 1, 400)), "pope": [1] * 9 + [0]})
    b = harness_like(tmp_path / "b", {"mmvet": list(points), "pope": [1] * 8 + [0, 0]})
    vet, pope = [compare.compare_runs(*pair) for pair in compare.find_pairs(str(a), str(b))]
    assert vet.difference == pytest.approx(2, abs=0.2)
    assert vet.significant
    assert pope.difference == pytest.approx(10)
    assert not pope.significant
    assert len(compare.find_pairs(f"{a}:pope", f"{b}:pope")) == 1


def logged(folder, right, name="20261116_020000_samples_pope.jsonl", metric=None):
    """As lmms-eval logs samples: one file per task, with the metric as the task computes it."""
    metric = metric or (lambda n: {"pope_accuracy": {"question_id": n, "score": float(n < right)}})
    folder.mkdir(parents=True, exist_ok=True)
    about = {"target": "yes", "filtered_resps": "yes", "token_counts": [{"output_tokens": 1}], "input": "Is it?"}
    lines = [json.dumps({"doc_id": n, **about, "doc_hash": str(folder), **metric(n)}) for n in range(50)]
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def test_logged_samples_of_lmms_eval_are_compared(tmp_path):
    a, b = logged(tmp_path / "a" / "model", 45), logged(tmp_path / "b" / "model", 20)
    logged(a, 0, "20251231_235959_samples_pope.jsonl")  # an older run in the same folder
    assert "50.0 points above" in run(tmp_path / "a", tmp_path / "b")[1]
    assert list(scores.load_runs(b)) == ["pope"]


@pytest.mark.parametrize(
    "metric",
    [
        lambda n: {"exact_match": float(n < 40), "submission": {"answer": "yes"}},
        lambda n: {"lvb_acc": {"answer": "A", "parsed_pred": "A" if n < 40 else "B"}},
        lambda n: {"other": {"answer": "A"}, "mme_perception_score": {"score": float(n < 40)}},
    ],
)
def test_all_forms_of_lmms_eval_metrics_are_read(tmp_path, metric):
    (found,) = scores.load_runs(logged(tmp_path / "run", 0, metric=metric)).values()
    assert sum(found.scores.values()) == 40


def test_different_samples_are_an_error_unless_common_is_given(tmp_path):
    a = pocket_like(tmp_path / "a", total=100)
    b = pocket_like(tmp_path / "b", total=80)
    result, output = run(f"{a}:eadp", f"{b}:eadp")
    assert result.exit_code == 2
    assert "100 samples" in output
    assert "80 match" in output
    result, output = run(f"{a}:eadp", f"{b}:eadp", "--common")
    assert result.exit_code == 0
    assert "same 80 samples" in output


def test_samples_with_other_questions_do_not_match(tmp_path):
    a = pocket_like(tmp_path / "a")
    b = pocket_like(tmp_path / "b", expected="no")
    _, output = run(f"{a}:eadp", f"{b}:eadp", "--common")
    assert "0 match" in output


def test_results_json_of_eval_is_compared(tmp_path):
    path = tmp_path / "results.json"
    outcomes = [
        {"method": "eadp", "keep": 32, "options": {}, "right": [True] * 50},
        {"method": "topk", "keep": 32, "options": {}, "right": [True] * 30 + [False] * 20},
    ]
    path.write_text(json.dumps({"kinds": ["count"] * 50, "expected": ["1"] * 50, "outcomes": outcomes}))
    assert "40.0 points above" in run(f"{path}:eadp", ":topk")[1]


def test_differences_are_written_as_json(tmp_path):
    folder = pocket_like(tmp_path / "run")
    run(f"{folder}:eadp", ":topk keep=0.125", "--out", tmp_path / "new" / "difference.json")
    (found,) = json.loads((tmp_path / "new" / "difference.json").read_text())
    assert found["difference"] == pytest.approx(10)
    assert found["significant"] is True


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ("{0}:fastv", ":eadp", "no run 'fastv'; it has: eadp keep=0.125"),
        ("{0}/nowhere", "{0}", "is not a folder of results"),
        ("{0}", "{1}", "no pair among eadp keep=0.125"),
    ],
)
def test_errors_list_the_available_runs(tmp_path, a, b, message):
    places = pocket_like(tmp_path / "a"), pocket_like(tmp_path / "b", {"x keep=1": 1, "y keep=1": 2})
    result, output = run(a.format(*places), b.format(*places))
    assert result.exit_code == 2
    assert message in output


def test_record_without_a_score_is_named_in_the_error(tmp_path):
    with Journal.open(tmp_path / "run", {}) as journal:
        journal.add("a", {"answer": "yes"})
    with pytest.raises(ValueError, match="record 'a' has neither \"right\" nor a number"):
        scores.load_runs(tmp_path / "run")
    Journal.open(tmp_path / "empty", {}).close()
    with pytest.raises(ValueError, match="no scores of samples"):
        scores.load_runs(tmp_path / "empty")


def test_eadp_is_compared_with_all_others_at_its_budget():
    def outcome(setting, first):
        return Outcome(setting, right=[n < first for n in range(100)])

    outcomes = [
        outcome(MethodSpec(ALL_TOKENS), 95),
        outcome(MethodSpec("eadp", 32), 94),
        outcome(MethodSpec("topk", 32), 70),
        outcome(MethodSpec("topk", 16), 60),
    ]
    found = compare.compare_with_others(outcomes)
    assert [each.b for each in found] == [ALL_TOKENS, "topk 32"]
    assert [each.significant for each in found] == [False, True]
    assert found[1].difference == pytest.approx(24)
