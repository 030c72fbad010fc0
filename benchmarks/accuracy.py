"""Measure every method for images on scenes of things, with 64, 32 and 16 of 576 tokens: which methods differ?

    python benchmarks/accuracy.py                    # 3,000 questions, an hour or two on one core
    python benchmarks/accuracy.py --samples 300      # a first look
    python benchmarks/accuracy.py --model smol --samples 500 --methods eadp,divprune,random

The model `things` is a toy: the figures show how methods behave, not how accurate they are on photographs. All pairs of
methods are compared on the same questions, by random signs of the differences of whole scenes, with Holm's correction
for the number of pairs. Every answer is kept in out/accuracy, so that a run can be continued.
"""

from __future__ import annotations

from typing import Any

import common
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eadp.evaluate import pocket_benchmark
from eadp.evaluate.journal import Journal
from eadp.evaluate.pairwise import Pairwise, compare_all
from eadp.evaluate.pocket_benchmark import Outcome, PocketReport
from eadp.method_spec import ALL_TOKENS, BLIND, MAJORITY, MethodSpec
from eadp.methods import EADP, get_method_class, list_methods
from eadp.methods.video import VideoMethod
from eadp.pocket.names import THINGS
from eadp.pocket.worlds import samples_for
from eadp.utils.tables import format_markdown

BUDGETS = (64, 32, 16)
OPTIONS: dict[str, dict[str, Any]] = {
    # The last layer of the tower is the identity, and its attention is meaningless: use the layer before it.
    "prumerge": {"layer": -2},
    # With so few layers, a low mean over the layers is out of reach: the budget counts what the last cut leaves.
    "sparsevlm": {"budget": "after_prune"},
    # Their releases send a few tokens more than the budget, which would not be a fair comparison.
    "dart": {"exact": True},
    "trim": {"exact": True},
}


def is_for_images(name: str) -> bool:
    """Whether a method takes a budget and does not need a clip."""
    method = get_method_class(name)
    return method.takes_budget and not issubclass(method, VideoMethod)


METHODS = [name for name in list_methods() if is_for_images(name)]


def main(samples: int = 3000, model: str = THINGS, methods: str = ",".join(METHODS)) -> None:
    """Measure, print, and write the results and the table in docs/guides/things.md."""
    common.use_one_thread()
    names = methods.split(",")
    settings = [MethodSpec(ALL_TOKENS), MethodSpec(BLIND)]
    settings += [MethodSpec(name, keep, OPTIONS.get(name, {})) for name in names for keep in BUDGETS]
    folder = common.ROOT / "out" / "accuracy" / model
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Journal.open(folder, pocket_benchmark.journal_settings(model)) as journal, Progress(*columns) as progress:
        task = progress.add_task(f"{len(settings)} settings", total=len(settings) * samples)
        report = pocket_benchmark.evaluate(
            settings, samples, progress=lambda done: progress.advance(task, done), model=model, journal=journal
        )
    scenes = [sample.scene for sample in samples_for(model, "test", samples)]
    pairs = {keep: compare_at(report, names, keep, scenes) for keep in BUDGETS}
    text = describe(report, names, pairs)
    Console(width=160).print(text)
    common.save("accuracy" if model == THINGS else f"accuracy-{model}", as_json(report, pairs))
    common.write_into(common.ROOT / "docs" / "guides" / "things.md", f"accuracy of {model}", text)


def compare_at(report: PocketReport, names: list[str], keep: int, scenes: list[int]) -> Pairwise:
    """Compare all pairs of methods at a budget."""
    return compare_all({name: report.find_outcome(name, keep).right for name in names}, scenes)


def describe(report: PocketReport, names: list[str], pairs: dict[int, Pairwise]) -> str:
    """The accuracies, and at each budget the methods that all differ from each other, as Markdown."""
    unpruned, blind, majority = (report.find_outcome(name) for name in (ALL_TOKENS, BLIND, MAJORITY))
    ordered = sorted(names, key=lambda name: -report.find_outcome(name, BUDGETS[1]).accuracy)
    rows = [[name, *(percent(report.find_outcome(name, keep)) for keep in BUDGETS)] for name in ordered]
    kinds, shown = list(report.accuracy_by_kind(unpruned)), EADP.name if EADP.name in names else names[0]
    by_kind = [
        [title, *(f"{100 * value:.0f}" for value in report.accuracy_by_kind(outcome).values())]
        for title, outcome in (
            ("all 576 tokens", unpruned),
            *((f"{shown}, {keep} tokens", report.find_outcome(shown, keep)) for keep in BUDGETS),
            ("without the image", blind),
            ("most frequent answer", majority),
        )
    ]
    found = "\n".join(
        f"- {keep} tokens: {len(pairwise.distinct)} methods all differ significantly from each other "
        f"({', '.join(pairwise.distinct)})."
        for keep, pairwise in pairs.items()
    )
    return "\n\n".join(
        (
            f"{len(report.kinds):,} test questions, percent correct (95 % interval). All 576 tokens: "
            f"{percent(unpruned)}; without the image: {percent(blind)}; always the most frequent answer of the "
            f"kind: {percent(majority)}.",
            format_markdown(["method", *(f"{keep} tokens" for keep in BUDGETS)], rows),
            found,
            "By kind of question, in percent:",
            format_markdown(["", *kinds], by_kind),
        )
    )


def percent(outcome: Outcome) -> str:
    """An accuracy with its interval, in percent."""
    low, high = outcome.interval
    return f"{100 * outcome.accuracy:.1f} ({100 * low:.0f}–{100 * high:.0f})"


def as_json(report: PocketReport, pairs: dict[int, Pairwise]) -> dict[str, Any]:
    """Accuracies by kind, and the corrected p-value of every pair."""
    return {
        "model": report.model,
        "questions": len(report.kinds),
        "outcomes": [
            {
                "method": outcome.spec.method,
                "keep": outcome.spec.keep,
                "options": outcome.spec.options,
                "accuracy": outcome.accuracy,
                "interval": outcome.interval,
                "loyalty": report.loyalty(outcome),
                "mean_tokens": outcome.mean_tokens,
                "layer_mean": outcome.layer_mean,
                "by_kind": report.accuracy_by_kind(outcome),
            }
            for outcome in report.outcomes
        ],
        "pairs": [
            {"keep": keep, "better": a, "worse": b, "corrected_p": p}
            for keep, found in pairs.items()
            for (a, b), p in found.corrected.items()
        ],
        "distinct": {str(keep): found.distinct for keep, found in pairs.items()},
    }


if __name__ == "__main__":
    typer.run(main)
