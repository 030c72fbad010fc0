"""How right the pocket model's answers stay: every method at a quarter, an eighth and a sixteenth of the tokens.

Pocket figures: a toy world and a model of two million parameters. They say how methods behave, not how well they do on
photographs.

    python benchmarks/accuracy.py                  # 320 questions, some 15 minutes on one core
    python benchmarks/accuracy.py --samples 48     # a look
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
# The pocket tower's last layer is the identity: its attention says nothing, so the layer before it stands in.
# Four layers let no method inside the language model reach a low mean: budgets count what the last cut leaves.
OPTIONS: dict[str, dict[str, Any]] = {
    "prumerge": {"layer": -2},
    "sparsevlm": {"budget": "after_prune"},
    # For equal budgets: their releases send a few tokens more.
    "dart": {"exact": True},
    "trim": {"exact": True},
}


METHODS = [name for name in list_methods() if get_method_class(name).takes_budget]


def main(samples: int = 320) -> None:
    """Measure, print, and write benchmarks/results/accuracy.json and the table in docs/guides/pocket.md."""
    common.one_thread()
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
    """One row a method, one column a budget."""

    def cell(method: str, share: float) -> str:
        outcome = found.find_outcome(method, share)
        low, high = outcome.interval
        inside = "" if abs(outcome.layer_mean - outcome.mean_tokens) < 1 else f" [{outcome.layer_mean:.0f}]"
        return f"{100 * outcome.accuracy:.1f} ({100 * low:.0f}–{100 * high:.0f}){inside}"

    rows = [[name, *(cell(name, share) for share in SHARES)] for name in METHODS]
    rows.sort(key=lambda row: -found.find_outcome(row[0], SHARES[1]).accuracy)
    whole, blind, majority = (found.find_outcome(name).accuracy for name in (ALL_TOKENS, BLIND, MAJORITY))
    head = ["method", *(f"{share:.4g} of the tokens" for share in SHARES)]
    said = (
        f"{len(found.kinds)} test questions, percent correct (95 % interval). Unpruned: {100 * whole:.1f}; without the "
        f"image: {100 * blind:.1f}; always the most frequent answer of the kind: {100 * majority:.1f}. In brackets, "
        "for methods that prune inside the language model: the mean number of tokens over its four layers."
    )
    return f"{said}\n\n{format_markdown(head, rows)}"


if __name__ == "__main__":
    typer.run(main)
