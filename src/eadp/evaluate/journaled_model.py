"""A model that answers each request once: known answers come from a journal, and a summary is written at the end."""

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

AVERAGED_FIELDS = ("tokens", "sent", "tokens_before", "layer_mean", "new_tokens")
"""The fields of a record that a summary averages over the samples."""


@dataclass(frozen=True)
class EvalRequest:
    """One question of a harness.

    Attributes:
        key: Identifies the sample in the journal.
        task: The task that the sample belongs to.
        load: Loads the conversation; called only if the request has to be answered.
        generation: Options for generating the answer, such as max_new_tokens.
    """

    key: str
    task: str
    load: Callable[[], Conversation]
    generation: Mapping[str, Any]


def hash_content(*parts: Any) -> str:
    """Return a short hash of JSON values, for the key of a request."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()[:16]


class JournaledModel:
    """A model with a journal of its answers.

    Attributes:
        model: The model.
        journal: The journal; without one, answers are kept in memory only.
        records: The records of all requests so far, by their keys.
        new_keys: The keys of the requests that the model answered, rather than the journal.
    """

    def __init__(self, model: PrunedModel, journal: Journal | None = None) -> None:
        self.model, self.journal = model, journal
        self.records: dict[str, Record] = {}
        self.new_keys: set[str] = set()

    def answer(
        self, requests: Sequence[EvalRequest], batch: int = 1, progress: Callable[[int], Any] = lambda answers: None
    ) -> list[Record]:
        """Return the record of each request.

        Args:
            requests: The requests. Those with the same generation options are answered together.
            batch: The number of prompts per batch.
            progress: Called with the number of new answers.
        """
        known = [request.key for request in requests if self.journal is not None and request.key in self.journal]
        self.records.update((key, self.journal[key]) for key in known if self.journal is not None)
        progress(len(known))
        groups: dict[str, dict[str, EvalRequest]] = defaultdict(dict)
        for request in requests:
            if request.key not in self.records:
                groups[hash_content(request.generation)][request.key] = request
        for group in groups.values():
            unanswered = list(group.values())
            for start in range(0, len(unanswered), batch):
                self._answer_batch(unanswered[start : start + batch])
                progress(len(unanswered[start : start + batch]))
        return [self.records[request.key] for request in requests]

    def _answer_batch(self, requests: Sequence[EvalRequest]) -> None:
        answers = self.model.answer([request.load() for request in requests], requests[0].generation)
        new = [
            (request.key, {"task": request.task, **asdict(answer)})
            for request, answer in zip(requests, answers, strict=True)
        ]
        if self.journal is not None:
            self.journal.extend(new)
        self.records.update((key, {"key": key, **record}) for key, record in new)
        self.new_keys.update(key for key, _ in new)


def write_summary(
    folder: Path, settings: HarnessSettings, records: Sequence[Record], new: int, harness: str
) -> list[Path]:
    """Write what was run with its token counts and times, and all records.

    Args:
        folder: Where <time>_eadp.json (the summary, overall and per task) and <time>_eadp_samples.jsonl (the records)
            are written.
        settings: The settings of the run.
        records: The records.
        new: How many of the records were answered in this run, rather than taken from the journal.
        harness: The name and version of the harness.

    Returns:
        The paths of the two files.
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
        **summarize(records),
        "answered_now": new,
        "tasks": {task: summarize(task_records) for task, task_records in sorted(by_task.items())},
    }
    lines = "".join(json.dumps(record) + "\n" for record in sorted(records, key=lambda record: record["key"]))
    written = [folder / f"{stamp}_eadp.json", folder / f"{stamp}_eadp_samples.jsonl"]
    for path, text in zip(written, (json.dumps(summary, indent=1) + "\n", lines), strict=True):
        replace_file(path, text)
    return written


def summarize(records: Sequence[Record]) -> Record:
    """Return the mean token counts per sample, and the total and median times.

    The median is there because the time of the first sample includes compilation.
    """
    if not records:
        return {"samples": 0}
    times = {name: [record[f"{name}_seconds"] for record in records] for name in ("prepare", "generate")}
    return {
        "samples": len(records),
        **{name: fmean(record[name] for record in records) for name in AVERAGED_FIELDS},
        **{f"{name}_seconds": sum(seconds) for name, seconds in times.items()},
        **{f"median_{name}_seconds": median(seconds) for name, seconds in times.items()},
    }
