"""Scores per sample, from journals, from a results.json of `eadp eval`, or from the samples that lmms-eval logs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from eadp.evaluate.journal import MANIFEST, Journal, Record
from eadp.method_spec import MethodSpec

QUESTION_FIELDS = ("kind", "question", "expected")
"""Fields of a record that describe the question. If two runs have them, they must agree."""

LOGGED_SAMPLES = "*_samples_*.jsonl"
"""The files that lmms-eval writes with --log_samples, one per task."""

NOT_METRICS = {"doc_id", "doc", "target", "arguments", "input", "input_media", "resps", "filtered_resps"}
NOT_METRICS |= {"token_counts", "doc_hash", "submission"}
"""Fields of a logged sample that are not metrics."""

RunSample = tuple[str, str, Record]
"""The name of a run, the name of a sample in it, and the sample's record."""


@dataclass(frozen=True)
class ScoredRun:
    """The scores of one setting, or of one task of a harness.

    Attributes:
        name: The name of the run.
        scores: The score of each sample.
        questions: What is known about the question of each sample (`QUESTION_FIELDS`).
    """

    name: str
    scores: dict[str, float]
    questions: dict[str, dict[str, Any]]

    @classmethod
    def from_scores(cls, name: str, scores: Sequence[float]) -> ScoredRun:
        """Build a run from scores in the order of the questions, whose numbers become the names of the samples."""
        by_number = {str(number): float(score) for number, score in enumerate(scores)}
        return cls(name, by_number, {number: {} for number in by_number})


def load_runs(source: Path) -> dict[str, ScoredRun]:
    """Load the runs of a source by their names, with at least one run.

    Args:
        source: A folder with a journal (manifest.json, samples*.jsonl), a folder with samples that lmms-eval logged, or
            a results.json of `eadp eval`. Records need a "key", and "right" or a "score". The setting or the task of a
            record tells to which run it belongs.

    Raises:
        ValueError: If the source is none of these, has no scores, or has a record without a score.
    """
    runs = load_existing_runs(source)
    if not runs:
        raise ValueError(f"{source} has no scores of samples")
    return runs


def load_existing_runs(source: Path) -> dict[str, ScoredRun]:
    """Load the runs of a source like `load_runs`, or {} if it has none yet."""
    runs: dict[str, ScoredRun] = {}
    for name, sample, record in _find_reader(source)(source):
        run = runs.setdefault(name, ScoredRun(name, {}, {}))
        run.scores[sample] = _get_score(source, record)
        run.questions[sample] = {field: record[field] for field in QUESTION_FIELDS if field in record}
    return runs


def _find_reader(source: Path) -> Callable[[Path], Iterable[RunSample]]:
    if (source / MANIFEST).exists():
        return _read_journal
    if source.is_dir() and any(source.rglob(LOGGED_SAMPLES)):
        return _read_log
    if source.is_file() and source.suffix == ".json":
        return _read_results
    raise ValueError(
        f"{source} is not a folder of results, nor a folder of samples that lmms-eval logged (--log_samples), nor a "
        "results.json"
    )


def _read_journal(folder: Path) -> Iterator[RunSample]:
    """Read a journal.

    Keys are SETTING/NUMBER in the pocket benchmark and TASK/… in the harnesses. In a suite they are SETTING/BENCHMARK,
    and the samples are in a journal of that cell.
    """
    for record in Journal.read(folder)[1]:
        key = str(record["key"])
        if "benchmark" in record:
            spec, _, benchmark = key.rpartition("/")
            for task, sample, scored in _read_journal((folder / record["journal"]).parent):
                yield f"{spec} {benchmark}", f"{task}/{sample}", scored
            continue
        name = str(record["task"]) if "task" in record else key.rpartition("/")[0] if "method" in record else ""
        yield name, key.removeprefix(f"{name}/"), record


def _read_results(path: Path) -> Iterator[RunSample]:
    content = json.loads(path.read_text("utf-8"))
    if "outcomes" not in content:
        raise ValueError(f"{path} has no outcomes: it is not a results.json of `eadp eval pocket`")
    for outcome in content["outcomes"]:
        name = MethodSpec(outcome["method"], outcome["keep"], outcome["options"]).key
        answers = zip(outcome["right"], content["kinds"], content["expected"], strict=True)
        for number, (right, kind, expected) in enumerate(answers):
            yield name, str(number), {"right": right, "kind": kind, "expected": expected}


def _read_log(folder: Path) -> Iterator[RunSample]:
    for task, sample, record in read_logged_samples(folder):
        yield task, sample, {"key": f"{task}/{sample}", **record}


def read_logged_samples(folder: Path, metrics: Sequence[str] = ("*",)) -> Iterator[RunSample]:
    """Read the samples that lmms-eval logged. If a task was run several times, its last run counts.

    Args:
        folder: lmms-eval's output folder.
        metrics: Patterns for the names of the metrics. The first metric that matches is the score.

    Yields:
        The task, the number of the sample, and its record with "score", "question" and "expected".
    """
    # The names of the files begin with the date.
    in_order = sorted(folder.rglob(LOGGED_SAMPLES), key=lambda path: path.name)
    latest = {path.stem.split("_samples_", 1)[1]: path for path in in_order}
    for task, path in latest.items():
        for line in path.read_text("utf-8").splitlines():
            sample = json.loads(line)
            question = {"question": sample.get("input"), "expected": sample.get("target")}
            yield task, str(sample["doc_id"]), {"score": _find_metric(sample, metrics), **question}


def _find_metric(sample: Record, metrics: Sequence[str]) -> float | None:
    """Return the first metric that is a number, contains one as its score, or contains a parsed and a right answer."""
    matching = [name for pattern in metrics for name in sample if fnmatchcase(name, pattern)]
    for value in (sample[name] for name in matching if name not in NOT_METRICS):
        if isinstance(value, bool | int | float):
            return float(value)
        if isinstance(value, Mapping) and isinstance(value.get("score"), bool | int | float):
            return float(value["score"])
        if isinstance(value, Mapping) and {"parsed_pred", "answer"} <= value.keys():
            return float(value["parsed_pred"] == value["answer"])
    return None


def _get_score(source: Path, record: Record) -> float:
    value = record.get("score", record.get("right"))
    if not isinstance(value, bool | int | float):
        raise ValueError(
            f'{source}: the record {record.get("key")!r} has neither "right" nor a number as its "score". If a harness '
            "scores its answers later, compare the samples that it logs (--log_samples) or the folder of `eadp eval`"
        )
    return float(value)
