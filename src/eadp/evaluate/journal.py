"""A folder of results that survives a kill: a manifest, and one line of JSON for each sample as soon as it is known."""

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
"""Of the records: since 2 they say what the language model was sent beside what was kept."""

Record = dict[str, Any]


class Journal:
    """A folder of results: manifest.json, and samples.jsonl with one JSON object a line. One writer at a time.

    A run of several processes gives each its rank; rank r > 0 writes samples-<r>.jsonl. Every reader sees all of them.
    """

    def __init__(self, folder: Path, manifest: Record, descriptor: int):
        """Use Journal.open."""
        self.folder, self.manifest = folder, manifest
        self._descriptor: int | None = descriptor
        self._known = {record["key"]: record for record in _records(folder)}

    @classmethod
    def open(cls, folder: Path, settings: Record, *, rank: int = 0) -> Journal:
        """Start a folder, or go on with one of the same settings. A torn last line of a killed run is dropped."""
        folder = Path(folder)
        settings = _as_json(settings)
        folder.mkdir(parents=True, exist_ok=True)
        samples = folder / (f"samples-{rank}.jsonl" if rank else "samples.jsonl")
        if samples.exists() and not (folder / MANIFEST).exists():
            raise ValueError(f"{folder} has samples but no {MANIFEST} that says what they are: give another folder")
        started = _start(folder, settings)
        manifest = _manifest(folder)
        if manifest.get("format", 1) != FORMAT:
            raise ValueError(
                f"{folder} was begun by another version of eadp, whose records have other fields: give another folder"
            )
        if manifest["settings"] != settings:
            raise ValueError(
                f"{folder} holds results of other settings ({_difference(manifest['settings'], settings)}): give "
                "another folder, or the same settings to go on with it"
            )
        descriptor = os.open(samples, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            _lock(descriptor, folder)
            os.ftruncate(descriptor, _whole(samples.read_bytes()))
            if not started and not rank:
                manifest["resumed"].append(provenance())
                replace_file(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
            return cls(folder, manifest, descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    @staticmethod
    def read(folder: Path) -> tuple[Record, list[Record]]:
        """Manifest and records, by anyone, also while a run is writing."""
        return _manifest(Path(folder)), list({record["key"]: record for record in _records(Path(folder))}.values())

    def add(self, key: str, record: Record) -> None:
        """Record a sample; it is on the disk when this returns."""
        self.extend([(key, record)])

    def extend(self, records: Iterable[tuple[str, Record]]) -> None:
        """Record several samples, with one wait for the disk."""
        if self._descriptor is None:
            raise ValueError(f"the journal in {self.folder} is closed")
        new: dict[str, Record] = {}
        for key, record in records:
            if key in self._known or key in new:
                raise ValueError(f"{key!r} is already in {self.folder}: a sample is recorded once")
            new[key] = {"key": key, **_as_json(record)}
        _append(self._descriptor, "".join(json.dumps(record) + "\n" for record in new.values()).encode())
        self._known.update(new)

    def records(self) -> list[Record]:
        """All records, those of the other ranks too, as they are on the disk now."""
        return self.read(self.folder)[1]

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __getitem__(self, key: str) -> Record:
        return self._known[key]

    def __len__(self) -> int:
        return len(self._known)

    def close(self) -> None:
        """Let the next writer in."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _lock(descriptor: int, folder: Path) -> None:
    """Ours until it is closed or this process dies, however it dies."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"another run is writing into {folder}: wait for it, or give another folder") from None


def _append(descriptor: int, data: bytes) -> None:
    """All of the data or none of it, so that a full disk leaves no half line for the next one to run into."""
    end = os.fstat(descriptor).st_size
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    except BaseException:
        os.ftruncate(descriptor, end)
        raise


def _records(folder: Path) -> Iterable[Record]:
    for path in [folder / "samples.jsonl", *sorted(folder.glob("samples-*.jsonl"))]:
        data = path.read_bytes() if path.exists() else b""
        for number, line in enumerate(data[: _whole(data)].splitlines(), start=1):
            try:
                record = json.loads(line)
                record["key"]
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"line {number} of {path} is not a record: the file was changed or damaged") from None
            yield record


def _whole(data: bytes) -> int:
    """How many bytes are whole lines; what a killed run was writing comes behind them."""
    return data.rfind(b"\n") + 1


def _manifest(folder: Path) -> Record:
    path = folder / MANIFEST
    if not path.exists():
        raise ValueError(f"{folder} has no {MANIFEST}: it is not a folder of results")
    return json.loads(path.read_text())


def _start(folder: Path, settings: Record) -> bool:
    """Write the manifest unless there is one; whether it was written. Of several ranks one writes."""
    if (folder / MANIFEST).exists():
        return False
    manifest = {**provenance(), "settings": settings, "seed": settings.get("seed"), "format": FORMAT, "resumed": []}
    return create_file(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def _as_json(content: Record) -> Record:
    """What reading it back will give: lists for tuples, names for numbers as keys."""
    try:
        return json.loads(json.dumps(content, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"only what JSON can hold can be recorded: {error}") from None


def _difference(there: Record, here: Record) -> str:
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    return "; ".join(f"{name}: {there.get(name)!r} there, {here.get(name)!r} here" for name in names)
