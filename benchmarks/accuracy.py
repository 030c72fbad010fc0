"""Measure the pocket model's accuracy with every method at a quarter, an eighth and a sixteenth of the tokens.

The pocket model is a toy of two million parameters: the figures show how methods behave, not how accurate they are on
photographs.

    python benchmarks/accuracy.py                  # 320 questions, about 15 minutes on one core
    python benchmarks/accuracy.py --samples 48     # a quick check
"""

from __future__ import annotations

from typing import Any

import common
import typer
from rich.console import Console
from rich.progress import Progress

from eadp.evaluate import pocket_benchmark, pocket_report
from eadp.method_spec import ALL_TOKENS, BLIND, MAJORITY, MethodSpec
from eadp.methods import get_method_class, list_methods
from eadp.utils.tables import format_markdown

SHARES = (0.25, 0.125, 0.0625)
OPTIONS: dict[str, dict[str, Any]] = {
    # The last layer of the pocket tower is the identity, and its attention is meaningless: use the layer before it.
    "prumerge": {"layer": -2},
    # With four layers, a low mean over the layers is out of reach: the budget counts what the last cut leaves.
    "sparsevlm": {"budget": "after_prune"},
    # Their releases send a few tokens more than the budget, which would not be a fair comparison.
    "dart": {"exact": True},
    "trim": {"exact": True},
}


METHODS = [name for name in list_methods() if get_method_class(name).takes_budget]


def main(samples: int = 320) -> None:
    """Measure, print, and write benchmarks/results/accuracy.json and the table in docs/guides/pocket.md."""
    common.use_one_thread()
    settings = [MethodSpec(ALL_TOKENS), MethodSpec(BLIND)]
    settings += [MethodSpec(name, share, OPTIONS.get(name, {})) for name in METHODS for share in SHARES]
    with Progress() as progress:
        task = progress.add_task(f"{len(settings)} settings", total=len(settings) * samples)
        found = pocket_benchmark.evaluate(settings, samples, progress=lambda done: progress.advance(task, done))
    console = Console(width=160)
    console.print(pocket_report.as_table(found))
    outcomes = [
        {k: v for k, v in o.items() if k not in ("answers", "right")} for o in pocket_report.as_json(found)["outcomes"]
    ]
    path = common.save("accuracy", {"questions": samples, "outcomes": outcomes})
    page = common.ROOT / "docs" / "guides" / "pocket.md"
    common.write_into(page, "accuracy", table(found))
    console.print(f"written: {path.relative_to(common.ROOT)}, {page.relative_to(common.ROOT)}")


def table(found: pocket_benchmark.PocketReport) -> str:
    """Format one row per method and one column per budget."""

    def cell(method: str, share: float) -> str:
        outcome = found.find_outcome(method, share)
        low, high = outcome.interval
        layer_mean = "" if abs(outcome.layer_mean - outcome.mean_tokens) < 1 else f" [{outcome.layer_mean:.0f}]"
        return f"{100 * outcome.accuracy:.1f} ({100 * low:.0f}–{100 * high:.0f}){layer_mean}"

    rows = [[name, *(cell(name, share) for share in SHARES)] for name in METHODS]
    rows.sort(key=lambda row: -found.find_outcome(row[0], SHARES[1]).accuracy)
    unpruned, blind, majority = (found.find_outcome(name).accuracy for name in (ALL_TOKENS, BLIND, MAJORITY))
    head = ["method", *(f"{share:.4g} of the tokens" for share in SHARES)]
    note = (
        f"{len(found.kinds)} test questions, percent correct (95 % interval). Unpruned: {100 * unpruned:.1f}; without "
        f"the image: {100 * blind:.1f}; always the most frequent answer of the kind: {100 * majority:.1f}. In "
        "brackets, for methods that prune inside the language model: the mean number of tokens over its four layers."
    )
    return f"{note}\n\n{format_markdown(head, rows)}"


if __name__ == "__main__":
    typer.run(main)
