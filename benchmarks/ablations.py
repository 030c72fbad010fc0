"""Repeat the paper's ablations on scenes of things: one setting at a time, with 32 of 576 tokens kept.

The model `things` is a toy: the figures show which settings matter for it, not which are best on photographs. An
interrupted run continues where it stopped.

    python benchmarks/ablations.py                  # 1,000 questions, about half an hour on one idle core
    python benchmarks/ablations.py --samples 48     # a quick check
"""

from __future__ import annotations

import common
import typer
from rich.console import Console
from rich.progress import Progress

from eadp.evaluate import sweep, sweep_report
from eadp.pocket.names import THINGS

FOLDER = common.ROOT / "out" / "ablations"
KEEP = 32


def main(samples: int = 1000) -> None:
    """Measure, print, and write benchmarks/results/ablations.json, docs/guides/ablations.md and its figure."""
    common.use_one_thread()
    plan = sweep.build_plan("eadp", KEEP, {}, sweep.paper_values())
    with Progress() as progress:
        task = progress.add_task(f"{len(plan.specs)} settings", total=len(plan.specs) * samples)
        found = sweep.run_on_pocket(plan, samples, THINGS, FOLDER, lambda done: progress.advance(task, done))
    blocks = found[THINGS]
    console = Console(width=160)
    console.print(sweep_report.as_table(plan, THINGS, blocks, with_paper=True))
    path = common.save("ablations", sweep_report.as_json(plan, found))
    page = common.ROOT / "docs" / "guides" / "ablations.md"
    common.write_into(page, "ablations", sweep_report.as_markdown(plan, THINGS, blocks, with_paper=True))
    figure = sweep_report.plot(plan, THINGS, blocks, common.IMAGES / "ablations.png")
    written = [each.relative_to(common.ROOT) for each in (path, page, figure)]
    console.print("written: " + ", ".join(map(str, written)))


if __name__ == "__main__":
    typer.run(main)
