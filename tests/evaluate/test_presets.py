"""Presets in evaluations: written alike everywhere, shown in every name, built for the loaded model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import fake_lmms_eval, tiny
from helpers.suite import SUITE, arguments
from typer.testing import CliRunner

from eadp.cli import app
from eadp.evaluate import compare, pocket_benchmark, pruned_model, suites, sweep
from eadp.evaluate.harness_settings import HarnessSettings
from eadp.evaluate.journal import Journal
from eadp.evaluate.suites import harness
from eadp.evaluate.suites.harness import Cell
from eadp.method_spec import ALL_TOKENS, MethodSpec, build_method, build_specs, parse_method
from eadp.methods.eadp import EADP


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The presets that were built, each with its family."""
    found: list[tuple[str, str]] = []
    real = EADP.preset_settings

    def recorded(name: str, family: str) -> dict[str, Any]:
        found.append((name, family))
        return real(name, family)

    monkeypatch.setattr(EADP, "preset_settings", recorded)
    return found


def run(*given: object) -> tuple[Any, str]:
    result = CliRunner().invoke(app, [str(each) for each in given], env={"COLUMNS": "160"})
    return result, " ".join(result.output.replace("│", " ").split())


def test_preset_is_part_of_the_name_or_an_option() -> None:
    assert parse_method("eadp", {"mu": 1}) == ("eadp", {"mu": 1})
    assert parse_method("eadp:published", {"mu": 1}) == ("eadp", {"preset": "published", "mu": 1})
    assert parse_method("eadp:published", {"preset": "published"}) == parse_method("eadp", {"preset": "published"})
    for text in ("eadp:", ":published"):
        with pytest.raises(ValueError, match="written eadp:published"):
            parse_method(text, {})
    with pytest.raises(ValueError, match="already names its preset: leave out preset=paper"):
        parse_method("eadp:published", {"preset": "paper"})


def test_names_of_a_spec_show_its_preset() -> None:
    setting = MethodSpec("eadp", 0.125, {"preset": "published", "mu": 1.0})
    assert setting.key == "eadp:published keep=0.125 mu=1.0"
    assert str(setting) == "eadp:published 12.5 %, mu=1.0"
    assert setting.attach_arguments == {"method": "eadp", "keep": 0.125, "preset": "published", "mu": 1.0}
    assert build_method(setting) == EADP.published(0.125, "llava", mu=1.0)


def test_options_apply_to_all_methods_or_to_one_or_to_one_with_its_preset() -> None:
    options = {"": {"tau": 0.02}, "eadp": {"mu": 0.3}, "eadp:published": {"q": 0.4}}
    found = build_specs(["eadp", "eadp:published"], [64], options)
    assert [each.key for each in found] == [
        "eadp keep=64 mu=0.3 tau=0.02",
        "eadp:published keep=64 mu=0.3 q=0.4 tau=0.02",
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--methods", "eadp:best"), "unknown preset 'best'; known: paper, published"),
        (("--set", "eadp.preset=best"), "unknown preset 'best'"),
        (("--methods", "divprune:published"), "divprune has no preset 'published'"),
        (("--methods", "eadp,uniform", "--set", "preset=published"), "uniform has no preset 'published'"),
        (("--methods", "eadp:paper", "--set", "eadp:published.mu=1"), "options are given for eadp:published"),
        (("--set", "newlines=some"), "newlines must be one of none, kept rows, all, chosen, got 'some'"),
    ],
)
def test_errors_are_raised_before_anything_runs(tmp_path: Path, given: tuple[str, ...], message: str) -> None:
    result, output = run("eval", "pocket", *given, "--samples", 1, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert message in output
    assert not (tmp_path / "out").exists()


def test_pocket_benchmark_has_a_row_per_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: list[tuple[str, str]]
) -> None:
    given = ("--keep", 16, "--samples", 3, "--out", tmp_path, "--set", "positions=renumber")
    result, output = run("eval", "pocket", "--methods", "eadp,eadp:published", *given)
    assert result.exit_code == 0, result.output
    assert "eadp:published 16, positions=renumber" in output
    assert set(made) == {("published", "llava")}
    table = (tmp_path / "table.md").read_text()
    assert "| setting | patches | sent | layer mean |" in table
    assert "| eadp:published 16, positions=renumber | 16 | 16 | 16 |" in table
    outcomes = json.loads((tmp_path / "results.json").read_text())["outcomes"]
    assert [each["options"].get("preset") for each in outcomes if each["method"] == "eadp"] == [None, "published"]
    assert {each["mean_sent"] for each in outcomes if each["method"] == "eadp"} == {16}
    keys = {line["key"].rpartition("/")[0] for line in Journal.read(tmp_path)[1]}
    assert {"eadp keep=16 positions=renumber", "eadp:published keep=16 positions=renumber"} < keys
    ((ours, theirs),) = compare.find_pairs(f"{tmp_path}:eadp:published", ":eadp")
    assert (ours.name.split()[0], theirs.name.split()[0]) == ("eadp:published", "eadp")
    # The preset as an option is the same setting, so nothing is answered again.
    monkeypatch.setattr(pocket_benchmark, "load_model", lambda name: pytest.fail("the model was loaded"))
    assert run("eval", "pocket", "--set", "eadp.preset=published", *given)[0].exit_code == 0


def test_each_pair_of_presets_is_compared_once() -> None:
    right = [True, False]
    outcomes = [
        pocket_benchmark.Outcome(setting, right=right)
        for setting in (MethodSpec(ALL_TOKENS), MethodSpec("eadp", 32), MethodSpec("eadp", 32, {"preset": "published"}))
    ]
    assert [(each.a, each.b) for each in compare.compare_with_others(outcomes)] == [
        ("eadp 32", ALL_TOKENS),
        ("eadp 32", "eadp:published 32"),
        ("eadp:published 32", ALL_TOKENS),
    ]


def test_harness_model_uses_the_preset_of_its_family(
    monkeypatch: pytest.MonkeyPatch, made: list[tuple[str, str]]
) -> None:
    found = tiny.model("qwen2_5_vl"), tiny.processor("qwen2_5_vl")
    monkeypatch.setattr(pruned_model, "load_model", lambda name, **options: found)
    model = pruned_model.PrunedModel(
        HarnessSettings.from_arguments(pretrained="some/qwen", method="eadp:published", keep=4, mu=0.3)
    )
    try:
        assert made[-1] == ("published", "qwen2_5_vl")
        assert model._pruned.method == EADP.published(4, "qwen2_5_vl", mu=0.3) != EADP.published(4, "llava", mu=0.3)
    finally:
        model.detach()


def test_family_without_a_published_eadp_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tiny.model("internvl"), tiny.processor("internvl")
    monkeypatch.setattr(pruned_model, "load_model", lambda name, **options: found)
    with pytest.raises(ValueError, match="family with a published EADP 'internvl'; known: llava"):
        pruned_model.PrunedModel(
            HarnessSettings.from_arguments(pretrained="some/model", method="eadp:published", keep=4)
        )


def test_journal_of_one_preset_is_not_continued_with_another(tmp_path: Path) -> None:
    plain, published, same, paper = (
        HarnessSettings.from_arguments(pretrained="pocket", keep=8, **given)
        for given in ({}, {"method": "eadp:published"}, {"preset": "published"}, {"method": "eadp:paper"})
    )
    assert published.as_json() == same.as_json()
    assert len({json.dumps(each.as_json()) for each in (plain, published, paper)}) == 3
    assert [each.name for each in (plain, published)] == ["pocket-eadp-keep8", "pocket-eadp-published-keep8"]
    Journal.open(tmp_path, published.as_json()).close()
    with pytest.raises(ValueError, match="results with other settings"):
        Journal.open(tmp_path, paper.as_json())


def test_presets_can_be_swept_and_used_in_a_sweep() -> None:
    plan = sweep.build_plan("eadp", 16, {}, sweep.parse_values(["preset=paper,published"]))
    assert [each.key for each in plan.specs] == ["eadp keep=16", "eadp:paper keep=16", "eadp:published keep=16"]
    # β = 2 is the default of the method but not of the preset, so it is run.
    plan = sweep.build_plan("eadp:published", 16, {}, sweep.parse_values(["beta=1,2"]))
    assert [each.key for each in plan.specs] == [
        "eadp:published keep=16",
        "eadp:published keep=16 beta=1",
        "eadp:published keep=16 beta=2",
    ]


def test_bench_has_a_row_per_preset(tmp_path: Path, made: list[tuple[str, str]]) -> None:
    outcomes = [{"method": "eadp", "options": {"preset": "published"}, "mean_tokens": 64.0, "accuracy": 0.5}]
    (tmp_path / "results.json").write_text(json.dumps({"outcomes": outcomes}))
    given = ("--model", "random:tiny-llava", "--methods", "eadp,eadp:published", "--keep", 64, "--samples", 1)
    result, output = run(
        *("bench", *given, "--warmup", 1, "--new-tokens", 1, "--out", tmp_path),
        *("--accuracy", tmp_path / "results.json"),
    )
    assert result.exit_code == 0, result.output
    assert "eadp:published 64" in output
    rows = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert [each["method"] for each in rows] == ["all tokens", "eadp", "eadp:published"]
    assert [each["tokens_sent"] for each in rows] == [576, 64, 64]
    assert made[-1] == ("published", "llava")


def benchmark(name: str) -> suites.Benchmark:
    return next(each for each in suites.load_suite("paper-llava").benchmarks if each.name == name)


def given(name: str, tmp_path: Path, **options: Any) -> dict[str, Any]:
    return Cell(benchmark(name), MethodSpec("eadp", 64, options), "some/model", tmp_path, {}).settings()


def test_published_preset_uses_the_mu_of_the_authors_scripts(tmp_path: Path) -> None:
    published = {"method": "eadp", "keep": 64, "preset": "published"}
    assert given("POPE", tmp_path, preset="published") == {**published, "mu": 1.0}
    assert given("VizWiz-val", tmp_path, preset="published") == {**published, "mu": 0.0}
    assert given("GQA", tmp_path, preset="published") == published
    assert given("POPE", tmp_path, preset="published", mu=0.3) == {**published, "mu": 0.3}
    for preset in ({}, {"preset": "paper"}):
        assert "mu" not in given("POPE", tmp_path, **preset)


def test_preset_is_passed_to_the_harnesses(tmp_path: Path) -> None:
    setting = MethodSpec("eadp", 64, {"preset": "published"})
    command = harness.build_command(Cell(benchmark("POPE"), setting, "some/model", tmp_path, {}), "python")
    model_args = command[command.index("--model_args") + 1].split(",")
    assert {"method=eadp", "keep=64", "preset=published", "mu=1.0"} <= set(model_args)
    own = suites.Benchmark("MME", "vlmeval", ("MME",), ("Overall",))
    command = harness.build_command(Cell(own, setting, "some/model", tmp_path, {}), "python")
    assert "preset=published" in command


def test_table_notes_say_what_the_authors_scripts_set(working: Path) -> None:
    suite = json.loads(json.dumps(SUITE))
    suite["benchmarks"][1]["published"] = {"eadp": {"mu": 1.0}}
    suite["arguments"] = {"*": {"question": "released"}}
    (working / "suite.json").write_text(json.dumps(suite))
    result, output = run(*arguments(working, "--methods", "eadp,eadp:published", "--keep", "64"))
    assert result.exit_code == 0, result.output
    table = (working / "out" / "table.md").read_text()
    assert f"| 64 | {64 + fake_lmms_eval.NEWLINES} | EADP:published | " in table
    assert "- The model is given question=released." in table
    assert "- EADP:published has mu=1.0 on MME, as its authors' scripts set it there." in table
    assert "EADP:published has mu=1.0 on MME" in output
    found = json.loads((working / "out" / "results.json").read_text())
    assert found["notes"][-1].startswith("EADP:published has mu=1.0 on MME")
    scripted = {(each["options"].get("preset"), each["benchmark"]["name"]): each["scripted"] for each in found["cells"]}
    assert scripted["published", "MME"] == {"mu": 1.0}
    assert scripted["published", "GQA"] == scripted[None, "MME"] == {}
    assert (working / "out" / "eadp_published_keep=64" / "MME" / "journal").is_dir()
