"""The report of the pocket benchmark, as a table, as files and as a plot."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from eadp.evaluate.compare import compare_with_others
from eadp.evaluate.pocket_benchmark import Outcome, PocketReport
from eadp.method_spec import BLIND, MAJORITY, MethodSpec
from eadp.methods import Downsample
from eadp.pocket.worlds import PHOTOGRAPHS
from eadp.utils.files import replace_file
from eadp.utils.palette import OKABE_ITO
from eadp.utils.tables import NOTHING, build_table, format_markdown


def build_rows(report: PocketReport) -> tuple[list[str], list[list[str]]]:
    """Build the header and one row per setting: token counts, accuracy in percent with its 95 % interval, by kind.

    On photographs, of which there are few, the accuracy of each kind has its interval, too.

    Loyalty is the share of answers that equal those of the unpruned model, in percent.
    """
    kinds = sorted(set(report.kinds))
    rows = []
    for outcome in report.outcomes:
        low, high = outcome.interval
        by_kind = _format_kinds(report, outcome)
        counts = [f"{mean:.0f}" for mean in (outcome.mean_tokens, outcome.mean_sent, outcome.layer_mean)]
        if outcome.spec.method in (BLIND, MAJORITY):
            counts = [NOTHING] * len(counts)
        accuracy = f"{100 * outcome.accuracy:.1f} ({100 * low:.1f}–{100 * high:.1f})"
        loyal = format_share(report.loyalty(outcome))
        rows.append([str(outcome.spec), *counts, accuracy, loyal, *(by_kind[kind] for kind in kinds)])
    return ["setting", "patches", "sent", "layer mean", "all kinds (95 %)", "loyalty", *kinds], rows


def _format_kinds(report: PocketReport, outcome: Outcome) -> dict[str, str]:
    accuracy = {kind: f"{100 * share:.0f}" for kind, share in report.accuracy_by_kind(outcome).items()}
    if report.benchmark != PHOTOGRAPHS:
        return accuracy
    intervals = report.intervals_by_kind(outcome)
    return {
        kind: f"{text} ({100 * low:.0f}–{100 * high:.0f})"
        for kind, text in accuracy.items()
        for low, high in [intervals[kind]]
    }


def as_table(report: PocketReport, title: str = "") -> Table:
    """Build the table for the terminal. title: what to say of the questions, instead of how many there are."""
    title = f"{report.model} model, {title or f'{len(report.kinds)} questions'}: accuracy and loyalty in percent"
    return build_table(*build_rows(report), left=["setting"], box=box.SIMPLE_HEAD, title=title)


def format_share(share: float | None) -> str:
    """Format a share in percent; a dash if it is not known."""
    return NOTHING if share is None else f"{100 * share:.1f}"


def as_markdown(report: PocketReport) -> str:
    """Format the table as Markdown."""
    return format_markdown(*build_rows(report)) + "\n"


def hard_reports(report: PocketReport) -> dict[str, PocketReport]:
    """Return the reports of the hard questions of each budget that `downsample` was run with, by their titles.

    A report may have no questions, if down-sampling answers all of them right.
    """
    budgets = [outcome.spec.keep for outcome in report.outcomes if outcome.spec.method == Downsample.name]
    found = {keep: report.only_hard(keep) for keep in budgets if keep is not None}
    return {
        f"the {len(hard.kinds)} of {len(report.kinds)} questions that down-sampling to "
        f"{f'{100 * keep:.4g} % of the' if isinstance(keep, float) else keep} tokens does not answer right": hard
        for keep, hard in found.items()
    }


def as_json(report: PocketReport) -> dict[str, Any]:
    """Return the content of results.json."""
    return {
        "benchmark": report.benchmark,
        "model": report.model,
        "questions": len(report.kinds),
        "kinds": report.kinds,
        "expected": report.expected,
        "outcomes": [
            {
                "method": outcome.spec.method,
                "keep": outcome.spec.keep,
                "options": outcome.spec.options,
                "accuracy": outcome.accuracy,
                "interval": outcome.interval,
                "loyalty": report.loyalty(outcome),
                "mean_tokens": outcome.mean_tokens,
                "mean_sent": outcome.mean_sent,
                "layer_mean": outcome.layer_mean,
                "by_kind": report.accuracy_by_kind(outcome),
                "intervals_by_kind": report.intervals_by_kind(outcome),
                "answers": outcome.answers,
                "right": outcome.right,
            }
            for outcome in report.outcomes
        ],
        "differences": [
            {**asdict(each), "significant": each.significant} for each in compare_with_others(report.outcomes)
        ],
    }


def write(report: PocketReport, folder: Path, hard: bool = False) -> list[Path]:
    """Write results.json, table.md and, if matplotlib is installed, accuracy.png; return their paths.

    Args:
        report: The report.
        folder: Where the files go.
        hard: Whether table.md also has the tables of the hard questions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results, table = folder / "results.json", folder / "table.md"
    replace_file(results, json.dumps(as_json(report)) + "\n")
    text = as_markdown(report)
    for title, part in (hard_reports(report) if hard else {}).items():
        text += f"\n{title[0].upper()}{title[1:]}:\n\n" + (as_markdown(part) if part.kinds else "none.\n")
    replace_file(table, text)
    try:
        import matplotlib
    except ImportError:
        return [results, table]
    matplotlib.use("Agg")
    return [results, table, plot(report, folder / "accuracy.png")]


def plot(report: PocketReport, path: Path) -> Path:
    """Plot accuracy against tokens, with one line per method and bars for the 95 % intervals."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
    pruned: dict[str, list[Outcome]] = {}
    for outcome in report.outcomes:
        if outcome.spec.keep is not None:
            name = str(MethodSpec(outcome.spec.method, options=outcome.spec.options))
            pruned.setdefault(name, []).append(outcome)
    for colour, (method, outcomes) in zip(OKABE_ITO * 3, pruned.items(), strict=False):
        outcomes.sort(key=lambda outcome: outcome.mean_tokens)
        tokens = [outcome.mean_tokens for outcome in outcomes]
        accuracies = [100 * outcome.accuracy for outcome in outcomes]
        errors = [
            [100 * (o.accuracy - o.interval[0]) for o in outcomes],
            [100 * (o.interval[1] - o.accuracy) for o in outcomes],
        ]
        axis.errorbar(tokens, accuracies, yerr=errors, marker="o", capsize=3, label=method, color=colour)
    for outcome, style in zip((o for o in report.outcomes if o.spec.keep is None), ("--", ":", "-."), strict=False):
        axis.axhline(100 * outcome.accuracy, color="grey", linestyle=style, label=outcome.spec.method)
    axis.set(
        xscale="log",
        xlabel="visual tokens kept",
        ylabel="accuracy, %",
        title=f"{report.model}: {report.benchmark}"
        if report.benchmark == PHOTOGRAPHS
        else f"{report.model.capitalize()} model (toy world)",
    )
    ticks = sorted({round(o.mean_tokens) for each in pruned.values() for o in each})
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8, ncols=2)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


__all__ = ["as_json", "as_markdown", "as_table", "write"]
