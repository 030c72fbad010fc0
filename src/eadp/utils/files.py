"""Files that are written in one step: a reader never sees half a file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Write a file in one step: a reader, or a kill at any moment, leaves the old file or the new one."""
    os.replace(_write_temporary(path, text), path)


def create_file(path: Path, text: str) -> bool:
    """Write a file in one step, unless it exists.

    Returns:
        Whether the file was written.
    """
    temporary = _write_temporary(path, text)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def _write_temporary(path: Path, text: str) -> Path:
    """Write the text to a hidden file in the folder of `path` and wait until it is on the disk."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(file.name, 0o644)
    return Path(file.name)
