"""The paper's ablations on the pocket model: every value that it tries, one setting at a time, four of 256 tokens left.

Pocket figures: a toy world and a model of two million parameters. They say which settings matter there, not which are
best on photographs. Goes on where it was stopped.

    python benchmarks/ablations.py                  # 320 questions, some 10 minutes on one quiet core
    python benchmarks/ablations.py --samples 48     # a look
"""

from __future__ import annotations

import common
import typer
from rich.console import Console
from rich.progress import Progress

from eadp.evaluate import sweep, sweep_report

FOLDER = common.ROOT / "out" / "ablations"
KEEP = 4


def main(samples: int = 320) -> None:
    """Measure, print, and write benchmarks/results/ablations.json, docs/guides/ablations.md and its figure."""
    common.one_thread()
    plan = sweep.build_plan("eadp", KEEP, {}, sweep.paper_values())
    with Progress() as progress:
        task = progress.add_task(f"{len(plan.specs)} settings", total=len(plan.specs) * samples)
        found = sweep.run_on_pocket(plan, samples, "pocket", FOLDER, lambda done: progress.advance(task, done))
    blocks = found["pocket"]
    console = Console(width=160)
    console.print(sweep_report.as_table(plan, "pocket", blocks, with_paper=True))
    path = common.save("ablations", sweep_report.as_json(plan, found))
    page = common.ROOT / "docs" / "guides" / "ablations.md"
    common.write_into(page, "ablations", sweep_report.as_markdown(plan, "pocket", blocks, with_paper=True))
    drawn = sweep_report.plot(plan, "pocket", blocks, common.IMAGES / "ablations.png")
    written = [each.relative_to(common.ROOT) for each in (path, page, drawn)]
    console.print("written: " + ", ".join(map(str, written)))


if __name__ == "__main__":
    typer.run(main)
