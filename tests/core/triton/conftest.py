"""The Triton kernels on the CPU, in Triton's interpreter; `tests/conftest.py` turns it on."""

import pytest


@pytest.fixture(autouse=True)
def wide_tiles(monkeypatch):
    """Read more columns at a time. The interpreter takes as long for many numbers as for few."""
    from eadp.core.triton import dpp, facility, max_min

    monkeypatch.setattr(facility, "COLUMNS", 64)
    monkeypatch.setattr(max_min, "ROWS", 64)
    monkeypatch.setattr(dpp, "FACTOR_ROWS", 64)
