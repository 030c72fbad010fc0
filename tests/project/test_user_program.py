"""The public API as its users and their type checkers see it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

from eadp.methods.base import restored_registry

PROGRAM = Path(__file__).parent / "user_program.py"

STRICT = [
    *("--strict", "--follow-imports=silent", "--config-file=", "--ignore-missing-imports"),
    f"--cache-dir={ROOT / '.mypy_cache' / 'user_program'}",
]


def check_types(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mypy", *STRICT, str(path)],
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_users_program_passes_mypy_strict(tmp_path: Path) -> None:
    found = check_types(PROGRAM)
    assert found.returncode == 0, found.stdout
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import eadp\neadp.attach(3)\nmethod: eadp.EADP = eadp.get_method('eadp')\neadp.get_metod('eadp')\n"
    )
    found = check_types(wrong)
    assert [line.split(":")[1] for line in found.stdout.splitlines() if ": error:" in line] == ["2", "3", "4"]


def test_a_users_program_runs() -> None:
    with restored_registry():
        from runpy import run_path

        assert run_path(str(PROGRAM))["main"]() == {
            **{"eadp": 32, "cdpruner": 64, "brightest": 16, "fastv": 8, "none": 256},
            **{"published": 20, "none by name": 256},
        }
