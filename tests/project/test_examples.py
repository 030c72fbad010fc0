"""The examples run offline on tiny models."""

from __future__ import annotations

import runpy
import sys

import pytest
from helpers import ROOT

EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("llava", [], "16 of 64 tokens"),
        ("qwen", [], "10 of 40 tokens"),
        ("video", [], "(3, 3, 3, 3)"),
        ("video", ["--llava-video"], "(3, 3, 3, 3)"),
    ],
)
def test_example(
    name: str, options: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--tiny", *options])
    monkeypatch.syspath_prepend(EXAMPLES)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert not ended.value.code
    assert says in capsys.readouterr().out
