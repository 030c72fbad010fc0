"""Files that are either whole or as they were."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace(path: Path, text: str) -> None:
    """Write a file in one step: a reader, or a kill at any moment, finds the old one or the new one."""
    os.replace(beside(path, text), path)


def create(path: Path, text: str) -> bool:
    """Write a file in one step unless there is one; whether it was written."""
    temporary = beside(path, text)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def beside(path: Path, text: str) -> Path:
    """The text on the disk, in a file next to `path` that no reader looks at."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(file.name, 0o644)
    return Path(file.name)
