"""Sweeps: a method with one of its settings changed at a time, or with every combination, against its defaults."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eadp.evaluate import paper
from eadp.evaluate.compare import Difference, difference, scale
from eadp.evaluate.journal import Journal
from eadp.evaluate.scores import Run, runs_so_far
from eadp.evaluate.setting import PRESET, Budget, Setting, grid, parse
from eadp.evaluate.statistics import mean_interval
from eadp.methods import get_method_class

if TYPE_CHECKING:
    from eadp.evaluate.suites import Ran

Values = dict[str, list[Any]]
"""What is tried of each setting."""


@dataclass(frozen=True)
class Point:
    """A place in a sweep: what is changed, and the setting that this makes."""

    changed: dict[str, Any]
    setting: Setting


@dataclass(frozen=True)
class Plan:
    """base: nothing changed. blocks: one for each setting that is tried, or one for all combinations."""

    base: Setting
    blocks: list[list[Point]]

    @property
    def settings(self) -> list[Setting]:
        """All that has to be run, each once."""
        every = [self.base, *(point.setting for block in self.blocks for point in block)]
        return list({setting.key: setting for setting in every}.values())


@dataclass(frozen=True)
class Tried:
    """What a point gave on one benchmark.

    scores:  mean score of the samples with its 95 % interval; None where the harness keeps no scores of samples.
    against: the paired difference of these scores to those of the base.
    figure:  what the harness reports, in the benchmark's own measure; None where it is the mean of the scores anyway.
    """

    point: Point
    is_base: bool
    scores: tuple[float, float, float] | None
    against: Difference | None
    figure: float | None = None


Blocks = list[list[Tried]]


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


def plan(method: str, keep: Budget | None, options: Mapping[str, Any], values: Values, combined: bool = False) -> Plan:
    """What to run; every setting is checked.

    options:  changed everywhere.
    combined: every combination of the values, instead of one setting at a time.
    """
    if not values:
        raise ValueError("nothing to try: give --over beta=0,0.5,2")

    def point(changed: dict[str, Any]) -> Point:
        return Point(changed, _setting(method, keep, {**options, **changed}))

    if combined:
        blocks = [[point(dict(zip(values, each, strict=True))) for each in product(*values.values())]]
    else:
        blocks = [[point({name: value}) for value in tried] for name, tried in values.items()]
    return Plan(_setting(method, keep, options), blocks)


def _setting(method: str, keep: Budget | None, options: Mapping[str, Any]) -> Setting:
    """Without what is the default anyway: a setting is run once, however it is written. A preset has other defaults,
    which depend on the model: with one everything stays as it is written."""
    bare, given = parse(method, {"keep": keep, **options})
    defaults = get_method_class(bare).default_settings()
    for name, value in options.items():
        if isinstance(defaults.get(name), int | float) and not isinstance(value, int | float):
            raise ValueError(f"{name} of {bare} is a number, {defaults[name]} by default, got {value!r}")
    budget = given.pop("keep")
    if PRESET not in given:
        given = {name: value for name, value in given.items() if name not in defaults or value != defaults[name]}
    return grid([bare], [budget], {"": given})[0]


def results(plan: Plan, runs: Mapping[str, Run], figures: Mapping[str, float] | None = None) -> Blocks:
    """runs, figures: by the keys of the plan's settings."""
    base = runs.get(plan.base.key)

    def tried(point: Point) -> Tried:
        key = point.setting.key
        against = difference(runs[key], base) if base and key in runs else None
        figure = None if figures is None else figures.get(key)
        return Tried(point, key == plan.base.key, _mean(runs[key]) if key in runs else None, against, figure)

    return [[tried(point) for point in block] for block in plan.blocks]


def _mean(run: Run) -> tuple[float, float, float]:
    values = list(run.scores.values())
    low, high = mean_interval(values)
    by = scale(values)
    return by * sum(values) / len(values), by * low, by * high


def on_pocket(
    plan: Plan, samples: int, model: str, folder: Path, progress: Callable[[int], None] = lambda answers: None
) -> dict[str, Blocks]:
    """Ask the pocket benchmark's questions under every setting of the plan, or find the answers in the folder."""
    from eadp.evaluate import pocket

    with Journal.open(folder, pocket.identity(model)) as journal:
        found = pocket.evaluate(plan.settings, samples, progress=progress, model=model, journal=journal)
    return {"pocket": results(plan, {o.setting.key: Run.of(o.setting.key, o.right) for o in found.outcomes})}


def on_suite(plan: Plan, ran: Ran) -> dict[str, Blocks]:
    """What a suite gave for the plan's settings, by benchmark."""
    scored, found = runs_so_far(ran.plan.out), {}
    for benchmark in ran.plan.benchmarks:
        values = {setting.key: ran.value(setting, benchmark) for setting in plan.settings}
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
