"""Measure which methods the world of things can tell apart: the same questions with 64, 32 and 16 of 576 tokens.

    python benchmarks/telling_apart.py                    # 3,000 questions, some hours on one core
    python benchmarks/telling_apart.py --samples 300      # a first look
    python benchmarks/telling_apart.py --model smol

All pairs of methods are compared on the same questions, by random signs of the differences of whole scenes, with
Holm's correction for the number of pairs. Every answer is kept in out/telling-apart, so that a run can be continued.
"""

from __future__ import annotations

from typing import Any

import common
import typer
from accuracy import OPTIONS
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eadp.evaluate import pocket_benchmark
from eadp.evaluate.journal import Journal
from eadp.evaluate.pairwise import Pairwise, compare_all
from eadp.evaluate.pocket_benchmark import PocketReport
from eadp.method_spec import ALL_TOKENS, BLIND, MAJORITY, MethodSpec
from eadp.pocket.names import THINGS
from eadp.pocket.worlds import samples_for
from eadp.utils.tables import format_markdown

BUDGETS = (64, 32, 16)
METHODS = (
    *("eadp", "cdpruner", "topk", "trim", "divprune", "mmtok", "scope", "vispruner", "visionzip", "hiprune"),
    *("prumerge", "fastv", "uniform", "random", "pool"),
)
PAGE = common.ROOT / "docs" / "guides" / "pocket.md"


def main(samples: int = 3000, model: str = THINGS, methods: str = ",".join(METHODS)) -> None:
    """Measure, print, and write benchmarks/results/telling_apart.json and the table in docs/guides/pocket.md."""
    common.use_one_thread()
    names = methods.split(",")
    settings = [MethodSpec(ALL_TOKENS), MethodSpec(BLIND)]
    settings += [MethodSpec(name, keep, OPTIONS.get(name, {})) for name in names for keep in BUDGETS]
    folder = common.ROOT / "out" / "telling-apart" / model
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
    common.save("telling_apart", as_json(report, pairs, samples))
    common.write_into(PAGE, "telling-apart", text)


def compare_at(report: PocketReport, names: list[str], keep: int, scenes: list[int]) -> Pairwise:
    """Compare all pairs of methods at a budget."""
    return compare_all({name: report.find_outcome(name, keep).right for name in names}, scenes)


def describe(report: PocketReport, names: list[str], pairs: dict[int, Pairwise]) -> str:
    """The accuracies, and at each budget the methods that all differ from each other, as Markdown."""

    def cell(name: str, keep: int | None) -> str:
        outcome = report.find_outcome(name, keep)
        low, high = outcome.interval
        return f"{100 * outcome.accuracy:.1f} ({100 * low:.0f}–{100 * high:.0f})"

    ordered = sorted(names, key=lambda name: -report.find_outcome(name, BUDGETS[1]).accuracy)
    rows = [[name, *(cell(name, keep) for keep in BUDGETS)] for name in ordered]
    lines = [
        f"{len(report.kinds):,} test questions, percent correct (95 % interval). All 576 tokens: "
        f"{cell(ALL_TOKENS, None)}; without the image: {cell(BLIND, None)}; always the most frequent answer of the "
        f"kind: {cell(MAJORITY, None)}.",
        format_markdown(["method", *(f"{keep} tokens" for keep in BUDGETS)], rows),
        *(
            f"- {keep} tokens: {len(found.distinct)} methods all differ from each other ({', '.join(found.distinct)})."
            for keep, found in pairs.items()
        ),
    ]
    return "\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:])


def as_json(report: PocketReport, pairs: dict[int, Pairwise], samples: int) -> dict[str, Any]:
    """Accuracies by kind, and the corrected p-value of every pair."""
    return {
        "model": report.model,
        "questions": samples,
        "outcomes": [
            {
                "method": outcome.spec.method,
                "keep": outcome.spec.keep,
                "accuracy": outcome.accuracy,
                "interval": outcome.interval,
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
