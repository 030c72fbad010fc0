"""The method `none` is the unpruned model in every command that takes a method."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from eadp.cli import app
from eadp.evaluate.suites import plan_specs
from eadp.method_spec import ALL_TOKENS, MethodSpec, build_specs


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def test_none_is_one_setting_for_all_budgets() -> None:
    specs = build_specs(["none", "eadp"], [8, 16])
    assert specs == [MethodSpec(ALL_TOKENS), MethodSpec("eadp", 8), MethodSpec("eadp", 16)]
    planned = plan_specs(["none", "topk"], [8, 16], {}, "x", None)
    assert [str(each) for each in planned] == [ALL_TOKENS, "topk 8", "topk 16"]
    with pytest.raises(ValueError, match="none has no setting mu"):
        build_specs(["none"], [8], {"": {"mu": 0.5}})
    with pytest.raises(ValueError, match="unknown method 'all tokens'"):
        build_specs([ALL_TOKENS], [8])


def test_eval_runs_the_unpruned_model_once(tmp_path: Path) -> None:
    run("eval", "pocket", "--methods", "none", "--keep", "0.5,0.25", "--samples", 2, "--out", tmp_path)
    found = json.loads((tmp_path / "results.json").read_text())
    assert [each["method"] for each in found["outcomes"]] == ["all tokens", "blind", "majority answer"]


def test_bench_measures_the_unpruned_model_once(tmp_path: Path) -> None:
    run("bench", "--methods", "none,uniform", "--keep", 64, "--samples", 1, "--new-tokens", 1, "--out", tmp_path)
    rows = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert [(each["method"], each["keep"]) for each in rows] == [("all tokens", None), ("uniform", 64)]


def test_show_draws_none_next_to_other_methods(tmp_path: Path) -> None:
    Image.new("RGB", (64, 64), "red").save(tmp_path / "red.png")
    out = tmp_path / "out.png"
    arguments = ("--model", "pocket", "--keep", 8, "--method", "none,uniform", "-o", out)
    output = run("show", tmp_path / "red.png", "What is red?", *arguments)
    assert {"none", "uniform"} <= {word for line in output.splitlines() for word in line.split()}


def test_serve_passes_none_on_without_a_budget() -> None:
    line = shlex.split(run("serve", "pocket", "--method", "none", "--dry-run"))
    assert json.loads(line[line.index("--hf-overrides") + 1])["eadp"] == {"method": "none"}
