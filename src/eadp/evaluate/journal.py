"""A folder of results that survives a kill: a manifest, and one line of JSON per sample, written at once."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from eadp.evaluate.provenance import provenance
from eadp.utils.files import create_file, replace_file

MANIFEST = "manifest.json"
FORMAT = 2
"""The version of the records. Since version 2 they have the tokens that the language model was sent."""

Record = dict[str, Any]


class Journal:
    """A folder of results with manifest.json and samples.jsonl, which has one JSON object per line.

    Only one process may write to samples.jsonl at a time. If a run has several processes, each opens the journal with
    its rank, and rank r > 0 writes to samples-r.jsonl. Readers see the records of all ranks.

    Use `Journal.open`, preferably in a `with` statement.

    Attributes:
        folder: The folder.
        manifest: The content of manifest.json: settings, versions, and when the run was started and resumed.
    """

    def __init__(self, folder: Path, manifest: Record, descriptor: int):
        self.folder, self.manifest = folder, manifest
        self._descriptor: int | None = descriptor
        self._records = {record["key"]: record for record in _read_records(folder)}

    @classmethod
    def open(cls, folder: Path, settings: Record, *, rank: int = 0) -> Journal:
        """Create a journal, or continue one with the same settings.

        An incomplete last line, left by a killed run, is removed.

        Args:
            folder: The folder; it is created if needed.
            settings: What all records have in common, as JSON values.
            rank: The rank of this process.

        Raises:
            ValueError: If the folder has other settings, another format or no manifest, or if another process is
                writing to it.
        """
        folder = Path(folder)
        settings = _as_json(settings)
        folder.mkdir(parents=True, exist_ok=True)
        samples = folder / (f"samples-{rank}.jsonl" if rank else "samples.jsonl")
        if samples.exists() and not (folder / MANIFEST).exists():
            raise ValueError(f"{folder} has samples but no {MANIFEST} that describes them: give another folder")
        is_new = _create_manifest(folder, settings)
        manifest = _read_manifest(folder)
        if manifest.get("format", 1) != FORMAT:
            raise ValueError(
                f"{folder} was written by another version of eadp, whose records have other fields: give another folder"
            )
        if manifest["settings"] != settings:
            raise ValueError(
                f"{folder} has results with other settings ({_describe_difference(manifest['settings'], settings)}): "
                "give another folder, or the same settings to continue it"
            )
        descriptor = os.open(samples, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            _lock(descriptor, folder)
            os.ftruncate(descriptor, _length_of_complete_lines(samples.read_bytes()))
            if not is_new and not rank:
                manifest["resumed"].append(provenance())
                replace_file(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
            return cls(folder, manifest, descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    @staticmethod
    def read(folder: Path) -> tuple[Record, list[Record]]:
        """Return the manifest and the records of all ranks. This is safe while a run is writing.

        Raises:
            ValueError: If the folder has no manifest, or a line is not a record.
        """
        records = {record["key"]: record for record in _read_records(Path(folder))}
        return _read_manifest(Path(folder)), list(records.values())

    def add(self, key: str, record: Record) -> None:
        """Add the record of one sample. It is on disk when this returns.

        Raises:
            ValueError: If the key is already used, the record is not JSON, or the journal is closed.
        """
        self.extend([(key, record)])

    def extend(self, records: Iterable[tuple[str, Record]]) -> None:
        """Add several records and wait for the disk only once. Raises the errors of `add`."""
        if self._descriptor is None:
            raise ValueError(f"the journal in {self.folder} is closed: open it again to add records")
        new: dict[str, Record] = {}
        for key, record in records:
            if key in self._records or key in new:
                raise ValueError(f"{key!r} is already in {self.folder}: each sample can be recorded once")
            new[key] = {"key": key, **_as_json(record)}
        _append(self._descriptor, "".join(json.dumps(record) + "\n" for record in new.values()).encode())
        self._records.update(new)

    def records(self) -> list[Record]:
        """Return all records that are on disk now, including those of other ranks."""
        return self.read(self.folder)[1]

    def __contains__(self, key: str) -> bool:
        return key in self._records

    def __getitem__(self, key: str) -> Record:
        return self._records[key]

    def __len__(self) -> int:
        return len(self._records)

    def close(self) -> None:
        """Close the journal so that another process can write to it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _lock(descriptor: int, folder: Path) -> None:
    """Lock a file until it is closed or this process ends, even if it is killed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"another run is writing to {folder}: wait for it, or give another folder") from None


def _append(descriptor: int, data: bytes) -> None:
    """Append all of the data or nothing, so that a full disk leaves no incomplete line before the next one."""
    end = os.fstat(descriptor).st_size
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    except BaseException:
        os.ftruncate(descriptor, end)
        raise


def _read_records(folder: Path) -> Iterable[Record]:
    for path in [folder / "samples.jsonl", *sorted(folder.glob("samples-*.jsonl"))]:
        data = path.read_bytes() if path.exists() else b""
        for number, line in enumerate(data[: _length_of_complete_lines(data)].splitlines(), start=1):
            try:
                record = json.loads(line)
                record["key"]
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"line {number} of {path} is not a record: the file was changed or damaged") from None
            yield record


def _length_of_complete_lines(data: bytes) -> int:
    return data.rfind(b"\n") + 1


def _read_manifest(folder: Path) -> Record:
    path = folder / MANIFEST
    if not path.exists():
        raise ValueError(f"{folder} has no {MANIFEST}: it is not a folder of results")
    return json.loads(path.read_text())


def _create_manifest(folder: Path, settings: Record) -> bool:
    """Write the manifest and return True, unless there is one already. Of several ranks one writes it."""
    if (folder / MANIFEST).exists():
        return False
    manifest = {**provenance(), "settings": settings, "seed": settings.get("seed"), "format": FORMAT, "resumed": []}
    return create_file(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def _as_json(content: Record) -> Record:
    """Convert to what reading the JSON will give: lists instead of tuples, strings as keys."""
    try:
        return json.loads(json.dumps(content, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"a journal can only hold JSON values: {error}") from None


def _describe_difference(recorded: Record, given: Record) -> str:
    names = [name for name in {**recorded, **given} if recorded.get(name) != given.get(name)]
    return "; ".join(f"{name}: {recorded.get(name)!r} in the folder, {given.get(name)!r} given" for name in names)
