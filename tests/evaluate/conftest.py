import json
import sys
from pathlib import Path

import pytest
from helpers import fake_lmms_eval
from helpers.suite import SUITE

from eadp.evaluate.suites import harness


@pytest.fixture
def working(tmp_path, monkeypatch):
    """A folder with a suite and a fake interpreter that behaves as if it had lmms-eval."""
    monkeypatch.setenv("WORKING", str(tmp_path))
    for name in harness.JUDGE_KEYS:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "suite.json").write_text(json.dumps(SUITE))
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n" + Path(fake_lmms_eval.__file__).read_text())
    python.chmod(0o755)
    return tmp_path
