"""The examples run offline on untrained tiny models, and stand alone."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

import pytest
from helpers import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CLIP = ["--model", "random:tiny-llava-onevision", "--frames", "4", "--tokens-per-frame", "3"]


@pytest.mark.parametrize(
    ("name", "options", "output"),
    [
        ("llava", ["--model", "random:tiny-llava-next", "--keep", "16"], "16 of 1152 tokens kept"),
        ("llava", ["--model", "random:tiny-llava", "--keep", "16"], "16 of 576 tokens kept"),
        ("qwen", ["--model", "random:tiny-qwen3-vl"], "a quarter of the tokens of each image: 16 of 64 tokens"),
        ("video", CLIP, "tokens kept per frame: (3, 3, 3, 3)"),
        ("video", [*CLIP, "--llava-video"], "tokens kept per frame: (3, 3, 3, 3)"),
    ],
)
def test_an_example_runs_offline(
    name: str, options: list[str], output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *options])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert not ended.value.code
    assert output in capsys.readouterr().out


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_imports_installed_packages_only(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    packages = {name.split(".")[0] for name in imported}
    assert packages <= {"PIL", "contextlib", "eadp", "transformers", "typer"}
    assert len(path.read_text().splitlines()) <= 45
