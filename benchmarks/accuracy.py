"""Measure the pocket model's accuracy with every method at a quarter, an eighth and a sixteenth of the tokens.

The pocket model is a toy of two million parameters: the figures show how methods behave, not how accurate they are on
photographs.

    python benchmarks/accuracy.py                  # 320 questions, about 15 minutes on one core
    python benchmarks/accuracy.py --samples 48     # a quick check
    python benchmarks/accuracy.py --only mmtok     # a new method; the results of the others stay

Every answer is kept in out/accuracy, so that a run can be continued.
"""

from __future__ import annotations

import json
from typing import Any

import common
import typer
from rich.console import Console
from rich.progress import Progress

from eadp.evaluate import pocket_benchmark, pocket_report
from eadp.evaluate.journal import Journal
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
    **{name: {"exact": True} for name in ("evs", "vidcom2", "vcast")},
    **{name: {"layer": -2, "exact": True} for name in ("fastvid", "holitom")},
    "flashvid": {"layer": -2, "exact": True, "expansion": 1.0},
}
JOURNAL = common.ROOT / "out" / "accuracy"


METHODS = [name for name in list_methods() if get_method_class(name).takes_budget]


def main(samples: int = 320, only: str = "") -> None:
    """Measure, print, and write benchmarks/results/accuracy.json and the table in docs/guides/pocket.md.

    Args:
        samples: Number of questions.
        only: Methods to measure, separated by commas. Default: all.
    """
    common.use_one_thread()
    settings = [MethodSpec(ALL_TOKENS), MethodSpec(BLIND)]
    measured = only.split(",") if only else METHODS
    settings += [MethodSpec(name, share, OPTIONS.get(name, {})) for name in measured for share in SHARES]
    with Journal.open(JOURNAL, pocket_benchmark.journal_settings()) as journal, Progress() as progress:
        task = progress.add_task(f"{len(settings)} settings", total=len(settings) * samples)
        found = pocket_benchmark.evaluate(
            settings, samples, progress=lambda done: progress.advance(task, done), journal=journal
        )
    console = Console(width=160)
    console.print(pocket_report.as_table(found))
    outcomes = [
        {k: v for k, v in o.items() if k not in ("answers", "right")} for o in pocket_report.as_json(found)["outcomes"]
    ]
    result = {"questions": samples, "outcomes": outcomes}
    if only:
        result = add_to_known(result)
    path = common.save("accuracy", result)
    page = common.ROOT / "docs" / "guides" / "pocket.md"
    common.write_into(page, "accuracy", table(result))
    console.print(f"written: {path.relative_to(common.ROOT)}, {page.relative_to(common.ROOT)}")


def add_to_known(result: dict[str, Any]) -> dict[str, Any]:
    """Put new outcomes among those of benchmarks/results/accuracy.json.

    Raises:
        ValueError: If those are of other questions or of another model, judged by the unpruned answers.
    """
    known = json.loads((common.RESULTS / "accuracy.json").read_text())
    new = {outcome["method"]: outcome for outcome in result["outcomes"]}
    before = next(outcome for outcome in known["outcomes"] if outcome["method"] == ALL_TOKENS)
    if known["questions"] != result["questions"] or before["by_kind"] != new[ALL_TOKENS]["by_kind"]:
        raise ValueError("the known results are of other questions or of another model: measure all methods again")
    others = [outcome for outcome in known["outcomes"] if outcome["method"] not in new]
    outcomes = sorted([*result["outcomes"], *others], key=lambda outcome: _place(outcome["method"]))
    return {"questions": result["questions"], "outcomes": outcomes}


def _place(method: str) -> int:
    return [ALL_TOKENS, BLIND, *METHODS, MAJORITY].index(method)


def table(result: dict[str, Any]) -> str:
    """Format one row per method and one column per budget."""
    outcomes = {(outcome["method"], outcome["keep"]): outcome for outcome in result["outcomes"]}

    def cell(method: str, share: float) -> str:
        outcome = outcomes[method, share]
        low, high = outcome["interval"]
        layer_mean = (
            "" if abs(outcome["layer_mean"] - outcome["mean_tokens"]) < 1 else f" [{outcome['layer_mean']:.0f}]"
        )
        return f"{100 * outcome['accuracy']:.1f} ({100 * low:.0f}–{100 * high:.0f}){layer_mean}"

    known = [name for name in METHODS if (name, SHARES[0]) in outcomes]
    rows = [[name, *(cell(name, share) for share in SHARES)] for name in known]
    rows.sort(key=lambda row: -outcomes[row[0], SHARES[1]]["accuracy"])
    unpruned, blind, majority = (outcomes[name, None]["accuracy"] for name in (ALL_TOKENS, BLIND, MAJORITY))
    head = ["method", *(f"{share:.4g} of the tokens" for share in SHARES)]
    note = (
        f"{result['questions']} test questions, percent correct (95 % interval). Unpruned: {100 * unpruned:.1f}; "
        f"without the image: {100 * blind:.1f}; always the most frequent answer of the kind: {100 * majority:.1f}. In "
        "brackets, for methods that prune inside the language model: the mean number of tokens over its four layers."
    )
    return f"{note}\n\n{format_markdown(head, rows)}"


if __name__ == "__main__":
    typer.run(main)
