"""Atomic writes: a reader never sees a partly written file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_file(path: Path, content: str | bytes) -> None:
    """Replace a file atomically: after a crash at any moment there is either the old file or the new one."""
    os.replace(_write_temporary(path, content), path)


def create_file(path: Path, text: str) -> bool:
    """Create a file atomically, unless it exists.

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


def _write_temporary(path: Path, content: str | bytes) -> Path:
    """Write the content to a hidden file next to `path`, and wait until it is on disk."""
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(file.name, 0o644)
    return Path(file.name)
