"""Ask every question once: what the journal knows is not asked again; what it took is written beside the results."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

from eadp.evaluate.harness_settings import HarnessSettings
from eadp.evaluate.journal import Journal, Record
from eadp.evaluate.provenance import provenance
from eadp.evaluate.pruned_model import Conversation, PrunedModel
from eadp.utils.files import replace_file

MEANS = ("tokens", "sent", "tokens_before", "layer_mean", "new_tokens")
"""What of a record is averaged over the samples."""


@dataclass(frozen=True)
class EvalRequest:
    """key: names the sample in the journal. read: gives the conversation; called only where it has to be answered."""

    key: str
    task: str
    read: Callable[[], Conversation]
    wishes: Mapping[str, Any]


def digest(*parts: Any) -> str:
    """A short name for what was asked."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()[:16]


class JournaledModel:
    """A model, and a record of every answer by the key of its request: found in the journal, or given now."""

    def __init__(self, model: PrunedModel, journal: Journal | None = None) -> None:
        self.model, self.journal = model, journal
        self.records: dict[str, Record] = {}
        self.new: set[str] = set()

    def answer(
        self, requests: Sequence[EvalRequest], batch: int = 1, progress: Callable[[int], Any] = lambda answered: None
    ) -> list[Record]:
        """The record of each request. Those with the same wishes are answered together, `batch` at a time."""
        found = [request.key for request in requests if self.journal is not None and request.key in self.journal]
        self.records.update((key, self.journal[key]) for key in found if self.journal is not None)
        progress(len(found))
        alike: dict[str, dict[str, EvalRequest]] = defaultdict(dict)
        for request in requests:
            if request.key not in self.records:
                alike[digest(request.wishes)][request.key] = request
        for group in alike.values():
            left = list(group.values())
            for start in range(0, len(left), batch):
                self._ask(left[start : start + batch])
                progress(len(left[start : start + batch]))
        return [self.records[request.key] for request in requests]

    def _ask(self, requests: Sequence[EvalRequest]) -> None:
        answers = self.model.answer([request.read() for request in requests], requests[0].wishes)
        given = [
            (request.key, {"task": request.task, **asdict(answer)})
            for request, answer in zip(requests, answers, strict=True)
        ]
        if self.journal is not None:
            self.journal.extend(given)
        self.records.update((key, {"key": key, **record}) for key, record in given)
        self.new.update(key for key, _ in given)


def write(folder: Path, settings: HarnessSettings, records: Sequence[Record], new: int, harness: str) -> list[Path]:
    """<time>_eadp.json: what was run, tokens and times over all and by task; <time>_eadp_samples.jsonl: by sample.

    new: how many of the records were answered in this run; the others came from a journal.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now().strftime("%Y%m%d_%H%M%S_%f")
    by_task: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_task[record["task"]].append(record)
    summary = {
        "harness": harness,
        **provenance(),
        "settings": settings.as_json(),
        **totals(records),
        "answered_now": new,
        "tasks": {task: totals(of) for task, of in sorted(by_task.items())},
    }
    lines = "".join(json.dumps(record) + "\n" for record in sorted(records, key=lambda record: record["key"]))
    written = [folder / f"{stamp}_eadp.json", folder / f"{stamp}_eadp_samples.jsonl"]
    for path, text in zip(written, (json.dumps(summary, indent=1) + "\n", lines), strict=True):
        replace_file(path, text)
    return written


def totals(records: Sequence[Record]) -> Record:
    """Mean tokens of a sample; total and median seconds, for the first sample also pays for compiling."""
    if not records:
        return {"samples": 0}
    times = {name: [record[f"{name}_seconds"] for record in records] for name in ("prepare", "generate")}
    return {
        "samples": len(records),
        **{name: fmean(record[name] for record in records) for name in MEANS},
        **{f"{name}_seconds": sum(of) for name, of in times.items()},
        **{f"median_{name}_seconds": median(of) for name, of in times.items()},
    }
