"""Where the scores of samples are found: journals, results.json of `eadp eval`, lmms-eval's logs of samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from eadp.evaluate.journal import MANIFEST, Journal, Record
from eadp.method_spec import MethodSpec

SAME = ("kind", "question", "expected")
"""Fields of a record that say what was asked: where two runs have them, they must agree."""

LOGGED = "*_samples_*.jsonl"
"""What lmms-eval writes with --log_samples: one file a task."""

LOGGED_ABOUT = {"doc_id", "doc", "target", "arguments", "input", "input_media", "resps", "filtered_resps"}
LOGGED_ABOUT |= {"token_counts", "doc_hash", "submission"}
"""Fields of its samples that are not metrics."""

Placed = tuple[str, str, Record]
"""Run, sample, record."""


@dataclass(frozen=True)
class ScoredRun:
    """The scores of one setting (or one task of a harness), by sample; asked: what each sample was, as far as known."""

    name: str
    scores: dict[str, float]
    asked: dict[str, dict[str, Any]]

    @classmethod
    def of(cls, name: str, scores: Sequence[float]) -> ScoredRun:
        """Of questions that are told apart by their numbers."""
        by_number = {str(number): float(score) for number, score in enumerate(scores)}
        return cls(name, by_number, {number: {} for number in by_number})


def runs(source: Path) -> dict[str, ScoredRun]:
    """The runs in a folder of results (manifest.json, samples*.jsonl), in a folder that lmms-eval logged its samples
    into, or in a results.json of `eadp eval`.

    Records have a "key" and "right" or a "score". Those of one folder are told apart by their setting, or their task.
    """
    found = runs_so_far(source)
    if not found:
        raise ValueError(f"{source} has no scores of samples")
    return found


def runs_so_far(source: Path) -> dict[str, ScoredRun]:
    """The same, and {} where there are none."""
    found: dict[str, ScoredRun] = {}
    for name, sample, record in _reader(source)(source):
        run = found.setdefault(name, ScoredRun(name, {}, {}))
        run.scores[sample] = _score(source, record)
        run.asked[sample] = {field: record[field] for field in SAME if field in record}
    return found


def _reader(source: Path) -> Callable[[Path], Iterable[Placed]]:
    if (source / MANIFEST).exists():
        return _journal
    if source.is_dir() and any(source.rglob(LOGGED)):
        return _logged
    if source.is_file() and source.suffix == ".json":
        return _results
    raise ValueError(
        f"{source} is no folder of results, no folder with samples of lmms-eval (--log_samples) and no results.json"
    )


def _journal(folder: Path) -> Iterator[Placed]:
    """Keys are SETTING/NUMBER in the pocket benchmark and TASK/… in the harnesses. A suite's are SETTING/BENCHMARK, and
    the samples of each lie in a folder of their own."""
    for record in Journal.read(folder)[1]:
        key = str(record["key"])
        if "benchmark" in record:
            spec, _, benchmark = key.rpartition("/")
            for task, sample, scored in _journal((folder / record["journal"]).parent):
                yield f"{spec} {benchmark}", f"{task}/{sample}", scored
            continue
        name = str(record["task"]) if "task" in record else key.rpartition("/")[0] if "method" in record else ""
        yield name, key.removeprefix(f"{name}/"), record


def _results(path: Path) -> Iterator[Placed]:
    content = json.loads(path.read_text("utf-8"))
    if "outcomes" not in content:
        raise ValueError(f"{path} has no outcomes: it is not a results.json of `eadp eval`")
    for outcome in content["outcomes"]:
        name = MethodSpec(outcome["method"], outcome["keep"], outcome["options"]).key
        asked = zip(outcome["right"], content["kinds"], content["expected"], strict=True)
        for number, (right, kind, expected) in enumerate(asked):
            yield name, str(number), {"right": right, "kind": kind, "expected": expected}


def _logged(folder: Path) -> Iterator[Placed]:
    return ((task, sample, {"key": f"{task}/{sample}", **record}) for task, sample, record in logged(folder))


def logged(folder: Path, metrics: Sequence[str] = ("*",)) -> Iterator[Placed]:
    """Task, number and record ("score", "question", "expected") of every sample that lmms-eval logged; of several runs
    into one folder the last of each task. metrics: patterns of what counts as a score, in turn."""
    # The names begin with the date.
    latest = {path.stem.split("_samples_", 1)[1]: path for path in sorted(folder.rglob(LOGGED), key=lambda p: p.name)}
    for task, path in latest.items():
        for line in path.read_text("utf-8").splitlines():
            sample = json.loads(line)
            asked = {"question": sample.get("input"), "expected": sample.get("target")}
            yield task, str(sample["doc_id"]), {"score": _metric(sample, metrics), **asked}


def _metric(sample: Record, metrics: Sequence[str]) -> float | None:
    """The first metric that is a number, has one as its score, or has an answer to set beside the right one."""
    fitting = [name for pattern in metrics for name in sample if fnmatchcase(name, pattern)]
    for value in (sample[name] for name in fitting if name not in LOGGED_ABOUT):
        if isinstance(value, bool | int | float):
            return float(value)
        if isinstance(value, Mapping) and isinstance(value.get("score"), bool | int | float):
            return float(value["score"])
        if isinstance(value, Mapping) and {"parsed_pred", "answer"} <= value.keys():
            return float(value["parsed_pred"] == value["answer"])
    return None


def _score(source: Path, record: Record) -> float:
    value = record.get("score", record.get("right"))
    if not isinstance(value, bool | int | float):
        raise ValueError(
            f'{source}: the record {record.get("key")!r} has neither "right" nor a number as its "score". Answers '
            "that a harness scores later are compared by what it logs (--log_samples), or in the folder of `eadp eval`"
        )
    return float(value)
