"""Suites as data: which task of which harness measures a benchmark, and how its value is computed."""

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
SUITE_NAMES = ("paper-llava", "paper-qwen", "paper-video")


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: one column of a suite's table.

    Attributes:
        name: The name of the benchmark in the paper.
        harness: The harness that runs it.
        tasks: The names of the harness's tasks.
        metrics: Patterns for the names of the figures that the harness reports. Each pattern must match exactly one
            figure of each task. The value is `scale` times the mean (or the sum) of these figures over all tasks.
        combine: Whether the figures are averaged or added.
        scale: See `metrics`.
        published: By method, the settings that its authors' scripts use on this benchmark only. They apply to the
            method's preset of that name.
        only_named: Whether the benchmark is run only if it is named, because it is a variant of another one.
        split: The split, for the listing.
        size: The number of samples of all tasks, for estimates of the time; 0 if it is not known.
        measure: The measure, for the listing.
        needs: "judge": an online model reads every answer. "judge for some": it reads the answers that rules cannot
            parse. "server": the answers must be submitted to a server, so the run has no value.
        remark: What to know before comparing the value with the paper's.
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
    size: int = 0
    needs: Needs = ""
    remark: str = ""

    def script_settings(self, spec: MethodSpec) -> dict[str, Any]:
        """Return what the authors' scripts set on this benchmark, for their preset and unless the spec overrides it."""
        settings = self.published.get(spec.method, {}) if spec.preset == PUBLISHED else {}
        return {name: value for name, value in settings.items() if name not in spec.options}

    def value(self, figures: Mapping[str, Mapping[str, float]]) -> float:
        """Compute the value of the benchmark.

        Args:
            figures: By task, the figures that the harness reports by their names.

        Raises:
            ValueError: If a task is missing, or a metric does not match exactly one figure.
        """
        values = [_get_figure(figures, task, pattern) for task in self.tasks for pattern in self.metrics]
        return self.scale * (sum(values) if self.combine == "sum" else sum(values) / len(values))


@dataclass(frozen=True)
class Suite:
    """Benchmarks that are run together.

    Attributes:
        name: The name of the suite.
        benchmarks: The benchmarks.
        model: The default checkpoint.
        arguments: Arguments for the model in the harness, by a pattern for the checkpoint's name. The paper's suites
            use them to preprocess images and questions as EADP's release does.
        include: A folder of further lmms-eval tasks.
    """

    name: str
    benchmarks: tuple[Benchmark, ...]
    model: str = ""
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    include: Path | None = None

    def arguments_for(self, model: str) -> dict[str, Any]:
        """Return the arguments whose patterns match a checkpoint's name."""
        matching: dict[str, Any] = {}
        for pattern, arguments in self.arguments.items():
            if fnmatchcase(Path(model).name.lower(), pattern.lower()):
                matching |= arguments
        return matching

    def select_benchmarks(self, names: Sequence[str], judge: bool) -> tuple[list[Benchmark], list[Benchmark]]:
        """Select the benchmarks to run.

        Args:
            names: The benchmarks to run, whatever they need; without any, all except the variants (`only_named`).
            judge: Whether an online judge is available.

        Returns:
            The benchmarks to run, and those that are skipped because they would have no value.

        Raises:
            ValueError: If the suite does not have a benchmark.
        """
        known = {benchmark.name.lower(): benchmark for benchmark in self.benchmarks}
        if unknown := [name for name in names if name.lower() not in known]:
            listed = ", ".join(benchmark.name for benchmark in self.benchmarks)
            raise ValueError(f"{self.name} has no benchmark {', '.join(unknown)}; it has {listed}")
        if names:
            return [known[name.lower()] for name in names], []
        unavailable = {"server"} if judge else {"server", "judge"}
        every = [benchmark for benchmark in self.benchmarks if not benchmark.only_named]
        run = [benchmark for benchmark in every if benchmark.needs not in unavailable]
        return run, [benchmark for benchmark in every if benchmark.needs in unavailable]


def load_suite(name: str) -> Suite:
    """Load a suite.

    Args:
        name: One of `SUITE_NAMES`, or the path of a JSON file of the same form.

    Raises:
        ValueError: If there is no such suite, or the file is malformed.
    """
    if name in SUITE_NAMES:
        return _build_suite(json.loads((files(__package__) / f"{name}.json").read_text("utf-8")), name)
    path = Path(name)
    if path.suffix != ".json" or not path.is_file():
        raise ValueError(
            f"unknown suite {name!r}; known: pocket, {', '.join(SUITE_NAMES)}, or the path of a suite in JSON"
        )
    try:
        return _build_suite(json.loads(path.read_text("utf-8")), path.stem, path.parent)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} is not a suite ({error}): it needs a list of benchmarks with name, harness, tasks and metrics"
        ) from error


def _build_suite(content: dict[str, Any], name: str, folder: Path | None = None) -> Suite:
    benchmarks = tuple(_build_benchmark(each) for each in content.pop("benchmarks"))
    include = content.pop("include", None)
    include_folder = (folder / include).absolute() if folder is not None and include is not None else None
    return Suite(**{"name": name, **content}, benchmarks=benchmarks, include=include_folder)


def _build_benchmark(content: dict[str, Any]) -> Benchmark:
    benchmark = Benchmark(**{**content, "tasks": tuple(content["tasks"]), "metrics": tuple(content["metrics"])})
    for name, value, known in (("harness", benchmark.harness, HarnessName), ("needs", benchmark.needs, Needs)):
        if value not in get_args(known):
            listed = ", ".join(repr(each) for each in get_args(known))
            raise ValueError(f"{name} of {benchmark.name} must be one of {listed}, got {value!r}")
    return benchmark


def _get_figure(figures: Mapping[str, Mapping[str, float]], task: str, pattern: str) -> float:
    if task not in figures:
        raise ValueError(f"the harness reported no figures of {task}")
    matching = [name for name in figures[task] if fnmatchcase(name, pattern)]
    if len(matching) != 1:
        names = ", ".join(figures[task]) or "none"
        raise ValueError(f"{pattern} matches {len(matching)} figures of {task} instead of one; it has: {names}")
    return float(figures[task][matching[0]])
