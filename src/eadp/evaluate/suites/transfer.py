"""Sends the folder of a cell from a node to the driver, and its progress to the next node, as parts of files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eadp.evaluate.journal import MANIFEST
from eadp.evaluate.suites.cell_run import RECORD
from eadp.utils.files import replace_file

PART_BYTES = 4 * 2**20
"""The most that one part holds."""
ANSWERS = "journal/samples*.jsonl"
"""The files of a cell's folder that only grow: the answers, one per line."""


@dataclass(frozen=True)
class FilePart:
    """A part of a file.

    Attributes:
        name: The path of the file, relative to the folder of the cell.
        offset: Where the part begins. What the file has from there on is replaced.
        data: The content.
    """

    name: str
    offset: int
    data: bytes


def read_progress(folder: Path) -> list[FilePart]:
    """Read what the next node has to know of a cell's folder: its answers, and its record if it has ended.

    Incomplete lines are left out.
    """
    sender = FolderSender(folder, [])
    return [*sender.new_answers(), *sender.record()]


def write_part(folder: Path, part: FilePart) -> None:
    """Write a part of a file, and wait until it is on disk."""
    path = folder / part.name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not part.offset:
        replace_file(path, part.data)
        return
    with open(path, "r+b") as file:
        file.truncate(part.offset)
        file.seek(part.offset)
        file.write(part.data)
        file.flush()
        os.fsync(file.fileno())


class FolderSender:
    """Reads what the driver does not have yet of a cell's folder.

    Args:
        folder: The folder.
        known: What the driver has. It is written to the folder.
    """

    def __init__(self, folder: Path, known: Sequence[FilePart]) -> None:
        self.folder = folder
        self._sent: dict[str, int] = {}
        for part in known:
            write_part(folder, part)
            self._sent[part.name] = part.offset + len(part.data)

    def new_answers(self) -> Iterator[FilePart]:
        """Yield the answers since the last call, and before the first of them the manifest of their journal."""
        manifest = self.folder / "journal" / MANIFEST
        if manifest.exists() and self._name(manifest) not in self._sent:
            yield from self._read(manifest, 0, manifest.stat().st_size)
        for path in sorted(self.folder.glob(ANSWERS)):
            start = self._sent.get(self._name(path), 0)
            with open(path, "rb") as file:
                file.seek(start)
                complete = file.read().rfind(b"\n") + 1
            if complete:
                yield from self._read(path, start, start + complete)

    def record(self) -> Iterator[FilePart]:
        """Yield the record of the cell, if it has ended."""
        path = self.folder / RECORD
        if path.exists():
            yield from self._read(path, 0, path.stat().st_size)

    def everything_else(self) -> Iterator[FilePart]:
        """Yield all files except the answers, the record last. The harness has ended, so they no longer change."""
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and not path.match(ANSWERS) and path.name != RECORD:
                yield from self._read(path, 0, path.stat().st_size)
        yield from self.record()

    def _read(self, path: Path, start: int, end: int) -> Iterator[FilePart]:
        with open(path, "rb") as file:
            file.seek(start)
            # An empty file has one empty part.
            for offset in range(start, max(end, start + 1), PART_BYTES):
                yield FilePart(self._name(path), offset, file.read(min(PART_BYTES, end - offset)))
        self._sent[self._name(path)] = end

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()
