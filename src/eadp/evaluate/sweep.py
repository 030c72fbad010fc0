"""Sweeps over a method's settings: one at a time, or every combination, compared with the defaults."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eadp import paper
from eadp.evaluate.compare import Difference, compare_runs, percent_scale
from eadp.evaluate.journal import Journal
from eadp.evaluate.loyalty import mean_on_hard
from eadp.evaluate.scores import ScoredRun, load_existing_runs
from eadp.method_spec import ALL_TOKENS, PRESET, Budget, MethodSpec, build_specs, parse_method
from eadp.methods import Downsample, get_method_class
from eadp.pocket.names import OFFLINE, POCKET
from eadp.utils.statistics import mean_interval

if TYPE_CHECKING:
    from eadp.evaluate.suites import SuiteResult

SweepValues = dict[str, list[Any]]
"""The values to try, by the name of the setting."""


@dataclass(frozen=True)
class SweepPoint:
    """One point of a sweep.

    Attributes:
        changed: The swept settings and their values at this point.
        spec: The method with these settings.
    """

    changed: dict[str, Any]
    spec: MethodSpec


@dataclass(frozen=True)
class SweepPlan:
    """The points of a sweep.

    Attributes:
        default: The method with nothing changed.
        blocks: One block of points per swept setting, or a single block with all combinations.
        hard: Whether to run `downsample` at the budgets of the points too, which tells which samples are hard.
    """

    default: MethodSpec
    blocks: list[list[SweepPoint]]
    hard: bool = False

    @property
    def specs(self) -> list[MethodSpec]:
        """All points, each once; the default is the first."""
        every = [self.default, *(point.spec for block in self.blocks for point in block)]
        return list({spec.key: spec for spec in every}.values())

    @property
    def all_specs(self) -> list[MethodSpec]:
        """All specs that have to be run: the unpruned model, for the loyalty of the points; the points; controls."""
        every = [MethodSpec(ALL_TOKENS), *self.specs]
        if self.hard:
            every += [downsampled(spec) for spec in self.specs]
        return list({spec.key: spec for spec in every}.values())


def downsampled(spec: MethodSpec) -> MethodSpec:
    """Return `downsample` with the budget of a spec."""
    return MethodSpec(Downsample.name, spec.keep)


@dataclass(frozen=True)
class SweepResult:
    """The result of one point on one benchmark.

    Attributes:
        point: The point.
        is_default: Whether the point is the default.
        score: The mean score of the samples and its 95 % interval (mean, low, high); None if the harness does not
            record scores per sample.
        difference: The paired difference of these scores to those of the default.
        reported: What the harness reports, in the benchmark's own measure; None on the pocket benchmark, which reports
            the mean score.
        loyalty: The share of answers that equal those of the unpruned model; None if it is not known.
        hard: The mean score of the samples that `downsample` with the same budget does not answer right, and how many
            there are; None if there are none, or if it is not known.
    """

    point: SweepPoint
    is_default: bool
    score: tuple[float, float, float] | None
    difference: Difference | None
    reported: float | None = None
    loyalty: float | None = None
    hard: tuple[float, int] | None = None


Blocks = list[list[SweepResult]]


def parse_values(texts: Sequence[str]) -> SweepValues:
    """Parse settings and their values.

    Args:
        texts: For example "beta=0,0.5,2", "dispersion=entropy,variance" or "layers=[1],[3]".

    Returns:
        For example {"beta": [0, 0.5, 2]}. What is not a JSON value stays a string; lists become tuples.

    Raises:
        ValueError: If a text is malformed, or a setting is given twice.
    """
    values: SweepValues = {}
    for text in texts:
        name, equals, listed = text.partition("=")
        if not equals or not listed.strip():
            raise ValueError(f"a setting and its values are written beta=0,0.5,2, got {text!r}")
        if name.strip() in values:
            raise ValueError(f"{name.strip()} is given twice: write all its values after one --over")
        values[name.strip()] = _parse_value_list(listed)
    return values


def _parse_value_list(text: str) -> list[Any]:
    try:
        return [tuple(value) if isinstance(value, list) else value for value in json.loads(f"[{text}]")]
    except ValueError:
        return [part.strip() for part in text.split(",") if part.strip()]


def build_plan(
    method: str,
    keep: Budget | None,
    options: Mapping[str, Any],
    values: SweepValues,
    combined: bool = False,
    hard: bool = False,
) -> SweepPlan:
    """Plan a sweep and check all its settings.

    Args:
        method: The method as a user writes it: "eadp" or "eadp:published".
        keep: The budget, unless it is swept.
        options: Options that hold in the whole sweep.
        values: The values to try.
        combined: Try every combination of the values instead of one setting at a time.
        hard: Also compute the results on hard samples only.

    Raises:
        ValueError: If there are no values, or a method, a setting or a value is unknown.
    """
    if not values:
        raise ValueError("there are no values to try: give --over beta=0,0.5,2")

    def build_point(changed: dict[str, Any]) -> SweepPoint:
        return SweepPoint(changed, _build_spec(method, keep, {**options, **changed}))

    if combined:
        blocks = [[build_point(dict(zip(values, each, strict=True))) for each in product(*values.values())]]
    else:
        blocks = [[build_point({name: value}) for value in tried] for name, tried in values.items()]
    return SweepPlan(_build_spec(method, keep, options), blocks, hard)


def _build_spec(method: str, keep: Budget | None, options: Mapping[str, Any]) -> MethodSpec:
    """Build a spec without options that equal the default, so that each setting is run once.

    With a preset all options stay, because its defaults depend on the model.
    """
    name, settings = parse_method(method, {"keep": keep, **options})
    defaults = get_method_class(name).default_settings()
    for option, value in options.items():
        if isinstance(defaults.get(option), int | float) and not isinstance(value, int | float):
            raise ValueError(f"{option} of {name} is a number, {defaults[option]} by default, got {value!r}")
    budget = settings.pop("keep")
    if PRESET not in settings:
        settings = {o: value for o, value in settings.items() if o not in defaults or value != defaults[o]}
    return build_specs([name], [budget], {"": settings})[0]


def collect_results(
    plan: SweepPlan,
    runs: Mapping[str, ScoredRun],
    reported: Mapping[str, float] | None = None,
    loyalties: Mapping[str, float | None] | None = None,
) -> Blocks:
    """Collect the results of a sweep on one benchmark.

    Args:
        plan: The sweep.
        runs: The scores per sample, by the key of the spec; those of `downsample` too, if the sweep asks for hard
            samples.
        reported: What the harness reports, by the key of the spec.
        loyalties: The share of answers that equal those of the unpruned model, by the key of the spec.
    """
    default_run = runs.get(plan.default.key)

    def collect(point: SweepPoint) -> SweepResult:
        key = point.spec.key
        difference = compare_runs(runs[key], default_run) if default_run and key in runs else None
        score = _mean_score(runs[key]) if key in runs else None
        return SweepResult(
            point,
            key == plan.default.key,
            score,
            difference,
            None if reported is None else reported.get(key),
            None if loyalties is None else loyalties.get(key),
            _score_on_hard(runs.get(key), runs.get(downsampled(point.spec).key)) if plan.hard else None,
        )

    return [[collect(point) for point in block] for block in plan.blocks]


def _mean_score(run: ScoredRun) -> tuple[float, float, float]:
    values = list(run.scores.values())
    low, high = mean_interval(values)
    scale = percent_scale(values)
    return scale * sum(values) / len(values), scale * low, scale * high


def _score_on_hard(run: ScoredRun | None, control: ScoredRun | None) -> tuple[float, int] | None:
    """Return the mean score of the samples that the control does not answer right, and how many there are."""
    if run is None or control is None or (found := mean_on_hard(run.scores, control.scores)) is None:
        return None
    return percent_scale(run.scores.values()) * found[0], found[1]


def run_on_pocket(
    plan: SweepPlan, samples: int, model: str, folder: Path, progress: Callable[[int], None] = lambda answers: None
) -> dict[str, Blocks]:
    """Run a sweep on the pocket benchmark.

    Args:
        plan: The sweep.
        samples: The number of questions.
        model: A name for `eadp.loading.load_model`.
        folder: The journal's folder. Answers that it already has are not generated again.
        progress: Called with the number of new answers.
    """
    from eadp.evaluate import pocket_benchmark

    with Journal.open(folder, pocket_benchmark.journal_settings(model)) as journal:
        report = pocket_benchmark.evaluate(plan.all_specs, samples, progress=progress, model=model, journal=journal)
    runs = {o.spec.key: ScoredRun.from_scores(o.spec.key, o.right) for o in report.outcomes}
    loyalties = {o.spec.key: report.loyalty(o) for o in report.outcomes}
    return {model if model in OFFLINE else POCKET: collect_results(plan, runs, loyalties=loyalties)}


def collect_suite_results(plan: SweepPlan, result: SuiteResult) -> dict[str, Blocks]:
    """Collect the results of a sweep from a suite that ran its specs, by benchmark."""
    runs, by_benchmark = load_existing_runs(result.plan.out), {}
    for benchmark in result.plan.benchmarks:
        values = {spec.key: result.value(spec, benchmark) for spec in plan.all_specs}
        own_runs = {key: runs[name] for key in values if (name := f"{key} {benchmark.name}") in runs}
        reported = {key: value for key, value in values.items() if value is not None}
        loyalties = {spec.key: result.loyalty(spec, [benchmark]) for spec in plan.specs}
        by_benchmark[benchmark.name] = collect_results(plan, own_runs, reported, loyalties)
    return by_benchmark


def paper_values() -> SweepValues:
    """Return the values that the paper's ablations try on LLaVA-1.5-7B, in the paper's order."""
    values: SweepValues = {}
    for name, value in paper_averages():
        values.setdefault(name, []).append(value)
    return values


def paper_averages() -> dict[tuple[str, Any], float]:
    """Return the averages of the paper's ablations, by setting and value.

    They are means of five benchmarks on LLaVA-1.5-7B with 128 of 576 tokens.
    """
    rows = [row for table in paper.tables("ablation") if table.model == "LLaVA-1.5-7B" for row in table.rows]
    tried = [parse_values([row.setting]) for row in rows]
    return {
        (name, value): row.figures[paper.AVERAGE]
        for row, each in zip(rows, tried, strict=True)
        for name, (value,) in each.items()
    }
