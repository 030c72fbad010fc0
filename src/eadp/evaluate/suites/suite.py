"""Suites as data: which task of which harness measures a benchmark, and how its figure is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

from eadp.method_spec import MethodSpec

PUBLISHED = "published"
HarnessName = Literal["lmms-eval", "vlmeval"]
Needs = Literal["", "judge for some", "judge", "server"]
NAMES = ("paper-llava", "paper-qwen", "paper-video")


@dataclass(frozen=True)
class Benchmark:
    """One column of a table.

    tasks:   names of the harness. metrics: patterns of the names of its figures; each must fit exactly one of a task's.
             The value is scale · the mean, or the sum, of all metrics of all tasks.
    published: by method, what its authors' scripts set on this benchmark alone; with its preset of that name.
    only_named: it is another way to measure a benchmark, and is run only where it is asked for by its name.
    needs:   "judge": an online model reads every answer; "judge for some": those that rules cannot read. "server": the
             answers have to be sent in, and there is no figure here.
    remark:  what to know before setting it beside the paper's figure.
    """

    name: str
    harness: HarnessName
    tasks: tuple[str, ...]
    metrics: tuple[str, ...]
    combine: Literal["mean", "sum"] = "mean"
    scale: float = 1
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    only_named: bool = False
    split: str = ""
    measure: str = ""
    needs: Needs = ""
    remark: str = ""

    def scripted(self, spec: MethodSpec) -> dict[str, Any]:
        """What the authors' scripts set here, where the setting has their preset and does not say otherwise."""
        scripts = self.published.get(spec.method, {}) if spec.preset == PUBLISHED else {}
        return {name: value for name, value in scripts.items() if name not in spec.options}

    def value(self, found: Mapping[str, Mapping[str, float]]) -> float:
        """found: by task, the harness's figures by their names."""
        values = [_only(found, task, pattern) for task in self.tasks for pattern in self.metrics]
        return self.scale * (sum(values) if self.combine == "sum" else sum(values) / len(values))


@dataclass(frozen=True)
class Suite:
    """Benchmarks that are run together.

    model:     the checkpoint where none is given.
    arguments: by pattern of a checkpoint's name, what the harness's model is given besides method and budget. The
               paper's suites show images and cut questions as EADP's release does.
    include:   folder of tasks of one's own, for lmms-eval.
    """

    name: str
    benchmarks: tuple[Benchmark, ...]
    model: str = ""
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    include: Path | None = None

    def arguments_for(self, model: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for pattern, arguments in self.arguments.items():
            if fnmatchcase(Path(model).name.lower(), pattern.lower()):
                found |= arguments
        return found

    def choose(self, names: Sequence[str], judge: bool) -> tuple[list[Benchmark], list[Benchmark]]:
        """What is run, and what is left out because it gives no figure here. names: those asked for; none: all but
        other ways to measure the same."""
        known = {benchmark.name.lower(): benchmark for benchmark in self.benchmarks}
        if unknown := [name for name in names if name.lower() not in known]:
            listed = ", ".join(benchmark.name for benchmark in self.benchmarks)
            raise ValueError(f"{self.name} has no benchmark {', '.join(unknown)}; it has {listed}")
        if names:
            return [known[name.lower()] for name in names], []
        without = {"server"} if judge else {"server", "judge"}
        every = [benchmark for benchmark in self.benchmarks if not benchmark.only_named]
        run = [benchmark for benchmark in every if benchmark.needs not in without]
        return run, [benchmark for benchmark in every if benchmark.needs in without]


def load(name: str) -> Suite:
    """A suite of ours by its name, or the path of a file of the same form."""
    if name in NAMES:
        return _suite(json.loads((files(__package__) / f"{name}.json").read_text("utf-8")), name)
    path = Path(name)
    if path.suffix != ".json" or not path.is_file():
        raise ValueError(f"unknown suite {name!r}; known: pocket, {', '.join(NAMES)}, or the path of a suite's .json")
    try:
        return _suite(json.loads(path.read_text("utf-8")), path.stem, path.parent)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} is not a suite ({error}): it has a list of benchmarks, each with name, harness, tasks and metrics"
        ) from error


def _suite(given: dict[str, Any], name: str, folder: Path | None = None) -> Suite:
    benchmarks = tuple(_benchmark(each) for each in given.pop("benchmarks"))
    include = given.pop("include", None)
    where = folder / include if folder is not None and include is not None else None
    return Suite(**{"name": name, **given}, benchmarks=benchmarks, include=where)


def _benchmark(given: dict[str, Any]) -> Benchmark:
    found = Benchmark(**{**given, "tasks": tuple(given["tasks"]), "metrics": tuple(given["metrics"])})
    for name, value, known in (("harness", found.harness, HarnessName), ("needs", found.needs, Needs)):
        if value not in get_args(known):
            said = ", ".join(repr(each) for each in get_args(known))
            raise ValueError(f"{name} of {found.name} is one of {said}, got {value!r}")
    return found


def _only(found: Mapping[str, Mapping[str, float]], task: str, pattern: str) -> float:
    if task not in found:
        raise ValueError(f"the harness gave no figures of {task}")
    fitting = [name for name in found[task] if fnmatchcase(name, pattern)]
    if len(fitting) != 1:
        there = ", ".join(found[task]) or "none"
        raise ValueError(f"{pattern} fits {len(fitting)} figures of {task} instead of one; there are: {there}")
    return float(found[task][fitting[0]])
