import pytest
from helpers.suite import write_suite

from eadp.evaluate.suites import harness


@pytest.fixture
def working(tmp_path, monkeypatch):
    """A folder with a suite and a fake interpreter that behaves as if it had lmms-eval."""
    for name in harness.JUDGE_KEYS:
        monkeypatch.delenv(name, raising=False)
    return write_suite(tmp_path)
