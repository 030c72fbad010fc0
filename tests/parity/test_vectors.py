"""Every method computes what its authors' release computes, on the golden vectors of tests/golden."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import GOLDEN
from typer.testing import CliRunner

from eadp import parity
from eadp.cli import app
from eadp.parity.vectors import GoldenVector, load_vectors

CASES = sorted(path.relative_to(GOLDEN).with_suffix("").as_posix() for path in GOLDEN.glob("*/*.npz"))


def load(case: str) -> GoldenVector:
    return GoldenVector.load((GOLDEN / case).with_suffix(".npz"))


@pytest.mark.parametrize("case", CASES)
def test_outputs_agree_with_the_release(case: str) -> None:
    assert parity.compare(load(case)).differences == ()


def test_every_method_has_golden_vectors() -> None:
    assert {vector.method for vector in load_vectors(GOLDEN)} == set(parity.TITLES)


@pytest.mark.parametrize("case", ["eadp_llava/scene_64_1", "cdpruner/qwen_two_24", "trim/scene_100_09"])
def test_a_changed_output_is_reported(case: str) -> None:
    vector = load(case)
    for name in ("kept", "rows"):
        wrong = vector.arrays[name].copy()
        wrong.flat[0] += 1 if name == "kept" else np.abs(wrong).max() / 500
        found = parity.compare(replace(vector, arrays={**vector.arrays, name: wrong})).differences
        assert [each.split(":")[0] for each in found] == [name]


def test_a_missing_output_is_reported() -> None:
    vector = load("fastv/64_63")
    settings = {**vector.settings, "outputs": [*vector.outputs, "colour"]}
    arrays = {**vector.arrays, "colour": np.zeros(1)}
    assert parity.compare(replace(vector, settings=settings, arrays=arrays)).differences == ("colour: missing",)


def test_vectors_of_unknown_methods_are_rejected() -> None:
    with pytest.raises(ValueError, match="'toothfairy'; known: eadp_llava"):
        parity.compare(replace(load("fastv/64_63"), method="toothfairy"))


def test_the_command_prints_the_table_and_fails_on_differences(tmp_path: Path) -> None:
    folder = tmp_path / "fastv"
    folder.mkdir()
    vector = load("fastv/64_63")
    text = (GOLDEN / "fastv" / "64_63.npz").read_bytes()
    (folder / "64_63.npz").write_bytes(text)
    result = CliRunner().invoke(app, ["parity", str(tmp_path)])
    assert result.exit_code == 0
    assert "1 of 1 vectors equal" in result.output
    with np.load(folder / "64_63.npz") as file:
        arrays = {name: file[name] for name in file.files}
    arrays["kept"] = arrays["kept"][::-1]
    np.savez(folder / "wrong.npz", **arrays)
    result = CliRunner().invoke(app, ["parity", str(tmp_path)])
    assert result.exit_code == 1
    assert "fastv/wrong: kept: " in result.output
    assert vector.settings["repository"] in result.output
    assert CliRunner().invoke(app, ["parity", str(tmp_path / "nothing")]).exit_code == 2
