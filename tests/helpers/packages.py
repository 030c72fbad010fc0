"""Made-up packages with weights, installed for a test."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from eadp.pocket.packaged import PackagedFile

CONTENT = b"weights"
FILE = PackagedFile("Some Model", "some-weights", "0.1.2", "weights.bin", hashlib.sha256(CONTENT).hexdigest())


def install(folder: Path, monkeypatch: Any, content: bytes = CONTENT, name: str = FILE.name) -> PackagedFile:
    """Put a distribution with one file into a folder, and the folder on the path."""
    info = folder / "some_weights-0.1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-weights\nVersion: 0.1.2\n")
    (info / "RECORD").write_text(f"some_weights/{name},,\n")
    (folder / "some_weights").mkdir()
    (folder / "some_weights" / name).write_bytes(content)
    monkeypatch.syspath_prepend(folder)
    return FILE
