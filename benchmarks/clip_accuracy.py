"""Measure answers about clips by method and budget: docs/methods/clips.md and benchmarks/results/clip_accuracy.json.

    python benchmarks/clip_accuracy.py                  # 600 clips
    python benchmarks/clip_accuracy.py --samples 60     # a first look

The model is `clips`. All budgets are exact, so that methods are compared with as many tokens. Every answer is kept in
out/clip-accuracy, so that a run can be continued.
"""

from __future__ import annotations

from typing import Any

import common
import typer
from rich.console import Console
from rich.progress import Progress

from eadp.evaluate import pocket_benchmark
from eadp.evaluate.journal import Journal
from eadp.evaluate.pairwise import compare_all
from eadp.evaluate.pocket_benchmark import Outcome, PocketReport
from eadp.method_spec import ALL_TOKENS, BLIND, MAJORITY, MethodSpec
from eadp.pocket.names import CLIPS
from eadp.utils.tables import format_markdown

BUDGETS = (1 / 4, 1 / 8, 1 / 16)
OWN_LAYER = {"layer": -2, "exact": True}
"""The last layer of the tower is the identity, and its attention means nothing: the layer before it is read."""

ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "whole frames at even distances": ("uniform", {"whole_frames": True}),
    "even grids of all frames": ("uniform", {}),
    "random": ("random", {}),
    "EVS": ("evs", {"exact": True}),
    "VidCom2": ("vidcom2", {"exact": True}),
    "V-CAST": ("vcast", {"exact": True}),
    "FastVID": ("fastvid", OWN_LAYER),
    "FlashVID": ("flashvid", {**OWN_LAYER, "expansion": 1.0}),
    "HoliTom": ("holitom", OWN_LAYER),
    "FLoC": ("floc", {}),
    "EADP, each frame alone": ("eadp", {}),
    "EADP, `time=2`": ("eadp", {"time": 2}),
    "EADP, `time=2`, without the question": ("eadp", {"time": 2, "beta": 0.0}),
}
"""The rows of the table: a method with its settings."""

PAGE = common.ROOT / "docs" / "methods" / "clips.md"


def main(samples: int = 600) -> None:
    """Measure, print, and write the results and the table."""
    common.use_one_thread()
    settings = {(row, keep): MethodSpec(name, keep, own) for row, (name, own) in ROWS.items() for keep in BUDGETS}
    specs = [MethodSpec(ALL_TOKENS), MethodSpec(BLIND), *settings.values()]
    folder = common.ROOT / "out" / "clip-accuracy"
    with Journal.open(folder, pocket_benchmark.journal_settings(CLIPS)) as journal, Progress() as progress:
        task = progress.add_task(f"{len(specs)} settings", total=len(specs) * samples)
        report = pocket_benchmark.evaluate(
            specs, samples, progress=lambda done: progress.advance(task, done), model=CLIPS, journal=journal
        )
    outcomes = dict(zip(settings, report.outcomes[2:], strict=False))
    text = describe(report, outcomes)
    Console(width=160).print(text)
    common.save("clip_accuracy", as_json(report, outcomes))
    common.write_into(PAGE, "accuracy", text)


def describe(report: PocketReport, outcomes: dict[tuple[str, float], Outcome]) -> str:
    """The accuracies as Markdown, and by kind at the smallest budget."""
    unpruned, blind = (report.find_outcome(name) for name in (ALL_TOKENS, BLIND))
    majority = report.find_outcome(MAJORITY)
    tokens = unpruned.tokens[0]
    rows = [[row, *(percent(outcomes[row, keep]) for keep in BUDGETS)] for row in ROWS]
    kinds = report.accuracy_by_kind(unpruned)
    by_kind = [
        [row, *(f"{100 * value:.0f}" for value in report.accuracy_by_kind(outcomes[row, BUDGETS[-1]]).values())]
        for row in ROWS
    ]
    chance = max(blind.accuracy, majority.accuracy)
    warning = (
        "**With all tokens, the model does not answer clearly better than without the frames and than the most "
        "frequent answer, so this table says nothing about the methods yet.**\n\n"
    )
    return (warning if unpruned.interval[0] <= chance else "") + "\n\n".join(
        (
            f"{len(report.kinds):,} test clips of 8 frames, one question about each, percent correct (95 % interval). "
            f"All {tokens:,} tokens: {percent(unpruned)}; without the frames: {percent(blind)}; always the most "
            f"frequent answer of the kind: {percent(majority)}.",
            format_markdown(["tokens kept", *(f"{keep * tokens:.0f}" for keep in BUDGETS)], rows),
            f"By what happens in the clip, with {BUDGETS[-1] * tokens:.0f} tokens:",
            format_markdown(
                ["", *kinds],
                [["all tokens", *(f"{100 * value:.0f}" for value in kinds.values())], *by_kind],
            ),
        )
    )


def percent(outcome: Outcome) -> str:
    """An accuracy with its interval, in percent."""
    low, high = outcome.interval
    return f"{100 * outcome.accuracy:.1f} ({100 * low:.0f}–{100 * high:.0f})"


def as_json(report: PocketReport, outcomes: dict[tuple[str, float], Outcome]) -> dict[str, Any]:
    """Accuracies by kind, and the corrected p-value of every pair of rows at each budget."""
    controls = {outcome.spec.method: outcome for outcome in report.outcomes if outcome.spec.keep is None}
    named = {(name, None): outcome for name, outcome in controls.items()} | outcomes
    names = {row: name for row, (name, _) in ROWS.items()}
    clips = range(len(report.kinds))
    return {
        "model": report.model,
        "questions": len(report.kinds),
        "outcomes": [
            {
                "row": row,
                "method": names.get(row, row),
                "keep": keep,
                "options": outcome.spec.options,
                "accuracy": outcome.accuracy,
                "interval": outcome.interval,
                "by_kind": report.accuracy_by_kind(outcome),
            }
            for (row, keep), outcome in named.items()
        ],
        "pairs": [
            {"keep": keep, "better": a, "worse": b, "corrected_p": p}
            for keep in BUDGETS
            for (a, b), p in compare_all({row: outcomes[row, keep].right for row in ROWS}, clips).corrected.items()
        ],
    }


if __name__ == "__main__":
    typer.run(main)
