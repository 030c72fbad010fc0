"""Sweeps: a method with one of its settings changed at a time, or with every combination, against its defaults."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eadp import paper
from eadp.evaluate.compare import Difference, difference, scale
from eadp.evaluate.journal import Journal
from eadp.evaluate.scores import ScoredRun, runs_so_far
from eadp.method_spec import PRESET, Budget, MethodSpec, build_specs, parse_method
from eadp.methods import get_method_class
from eadp.utils.statistics import mean_interval

if TYPE_CHECKING:
    from eadp.evaluate.suites import SuiteResult

Values = dict[str, list[Any]]
"""What is tried of each setting."""


@dataclass(frozen=True)
class SweepPoint:
    """A place in a sweep: what is changed, and the setting that this makes."""

    changed: dict[str, Any]
    spec: MethodSpec


@dataclass(frozen=True)
class SweepPlan:
    """base: nothing changed. blocks: one for each setting that is tried, or one for all combinations."""

    base: MethodSpec
    blocks: list[list[SweepPoint]]

    @property
    def specs(self) -> list[MethodSpec]:
        """All that has to be run, each once."""
        every = [self.base, *(point.spec for block in self.blocks for point in block)]
        return list({spec.key: spec for spec in every}.values())


@dataclass(frozen=True)
class SweepResult:
    """What a point gave on one benchmark.

    scores:  mean score of the samples with its 95 % interval; None where the harness keeps no scores of samples.
    against: the paired difference of these scores to those of the base.
    figure:  what the harness reports, in the benchmark's own measure; None where it is the mean of the scores anyway.
    """

    point: SweepPoint
    is_base: bool
    scores: tuple[float, float, float] | None
    against: Difference | None
    figure: float | None = None


Blocks = list[list[SweepResult]]


def over(texts: Sequence[str]) -> Values:
    """beta=0,0.5,2 → {"beta": [0, 0.5, 2]}; words stay words, lists are written in brackets."""
    found: Values = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not values.strip():
            raise ValueError(f"a setting and its values are written beta=0,0.5,2, got {text!r}")
        if name.strip() in found:
            raise ValueError(f"{name.strip()} is given twice: write all its values behind one --over")
        found[name.strip()] = _values(values)
    return found


def _values(text: str) -> list[Any]:
    try:
        return [tuple(value) if isinstance(value, list) else value for value in json.loads(f"[{text}]")]
    except ValueError:
        return [part.strip() for part in text.split(",") if part.strip()]


def plan(
    method: str, keep: Budget | None, options: Mapping[str, Any], values: Values, combined: bool = False
) -> SweepPlan:
    """What to run; every setting is checked.

    options:  changed everywhere.
    combined: every combination of the values, instead of one setting at a time.
    """
    if not values:
        raise ValueError("nothing to try: give --over beta=0,0.5,2")

    def point(changed: dict[str, Any]) -> SweepPoint:
        return SweepPoint(changed, _build_spec(method, keep, {**options, **changed}))

    if combined:
        blocks = [[point(dict(zip(values, each, strict=True))) for each in product(*values.values())]]
    else:
        blocks = [[point({name: value}) for value in tried] for name, tried in values.items()]
    return SweepPlan(_build_spec(method, keep, options), blocks)


def _build_spec(method: str, keep: Budget | None, options: Mapping[str, Any]) -> MethodSpec:
    """Without what is the default anyway: a setting is run once, however it is written. A preset has other defaults,
    which depend on the model: with one everything stays as it is written."""
    bare, given = parse_method(method, {"keep": keep, **options})
    defaults = get_method_class(bare).default_settings()
    for name, value in options.items():
        if isinstance(defaults.get(name), int | float) and not isinstance(value, int | float):
            raise ValueError(f"{name} of {bare} is a number, {defaults[name]} by default, got {value!r}")
    budget = given.pop("keep")
    if PRESET not in given:
        given = {name: value for name, value in given.items() if name not in defaults or value != defaults[name]}
    return build_specs([bare], [budget], {"": given})[0]


def results(plan: SweepPlan, runs: Mapping[str, ScoredRun], figures: Mapping[str, float] | None = None) -> Blocks:
    """runs, figures: by the keys of the plan's settings."""
    base = runs.get(plan.base.key)

    def tried(point: SweepPoint) -> SweepResult:
        key = point.spec.key
        against = difference(runs[key], base) if base and key in runs else None
        figure = None if figures is None else figures.get(key)
        return SweepResult(point, key == plan.base.key, _mean(runs[key]) if key in runs else None, against, figure)

    return [[tried(point) for point in block] for block in plan.blocks]


def _mean(run: ScoredRun) -> tuple[float, float, float]:
    values = list(run.scores.values())
    low, high = mean_interval(values)
    by = scale(values)
    return by * sum(values) / len(values), by * low, by * high


def on_pocket(
    plan: SweepPlan, samples: int, model: str, folder: Path, progress: Callable[[int], None] = lambda answers: None
) -> dict[str, Blocks]:
    """Ask the pocket benchmark's questions under every setting of the plan, or find the answers in the folder."""
    from eadp.evaluate import pocket_benchmark

    with Journal.open(folder, pocket_benchmark.identity(model)) as journal:
        found = pocket_benchmark.evaluate(plan.specs, samples, progress=progress, model=model, journal=journal)
    return {"pocket": results(plan, {o.spec.key: ScoredRun.of(o.spec.key, o.right) for o in found.outcomes})}


def on_suite(plan: SweepPlan, ran: SuiteResult) -> dict[str, Blocks]:
    """What a suite gave for the plan's settings, by benchmark."""
    scored, found = runs_so_far(ran.plan.out), {}
    for benchmark in ran.plan.benchmarks:
        values = {spec.key: ran.value(spec, benchmark) for spec in plan.specs}
        runs = {key: scored[name] for key in values if (name := f"{key} {benchmark.name}") in scored}
        found[benchmark.name] = results(plan, runs, {key: value for key, value in values.items() if value is not None})
    return found


def of_the_paper() -> Values:
    """The values that the paper's ablations try on LLaVA-1.5-7B, in its order."""
    found: Values = {}
    for name, value in ablations():
        found.setdefault(name, []).append(value)
    return found


def ablations() -> dict[tuple[str, Any], float]:
    """The paper's averages by setting and value: LLaVA-1.5-7B, 128 of 576 tokens, mean of five benchmarks."""
    rows = [row for table in paper.tables("ablation") if table.model == "LLaVA-1.5-7B" for row in table.rows]
    tried = [over([row.setting]) for row in rows]
    return {
        (name, value): row.figures[paper.AVERAGE]
        for row, each in zip(rows, tried, strict=True)
        for name, (value,) in each.items()
    }
