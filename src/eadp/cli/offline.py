"""The suites of `eadp eval` that need no harness, each named after the model that is asked by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eadp.cli.app import get_console, print_full_width

if TYPE_CHECKING:
    from eadp.evaluate.pocket_benchmark import PocketReport
    from eadp.method_spec import MethodSpec

DEFAULT_QUESTIONS = 2000
PHOTO_BATCH = 4
"""Photographs that are encoded at once: each takes some 200 MB in the tower."""


@dataclass(frozen=True)
class OfflineRun:
    """What a run is asked for.

    Attributes:
        model: The name of the model.
        methods: The methods, as a user writes them.
        budgets: Counts or shares.
        options: The settings of the methods, as in `build_specs`.
        hard: Whether to show the hard questions, too.
        samples: The number of questions; None for the suite's own.
    """

    model: str
    methods: Sequence[str]
    budgets: Sequence[int | float]
    options: Mapping[str, Mapping[str, Any]]
    hard: bool
    samples: int | None

    def specs(self) -> list[MethodSpec]:
        """All settings, the unpruned model and the blind control first."""
        from eadp.method_spec import ALL_TOKENS, BLIND, MethodSpec, build_specs
        from eadp.methods import Downsample

        specs = [MethodSpec(ALL_TOKENS), MethodSpec(BLIND)]
        specs += build_specs(self.methods, self.budgets, self.options)
        specs += build_specs([Downsample.name], self.budgets) if self.hard else []
        return list({spec.key: spec for spec in specs}.values())


def run_drawn(run: OfflineRun, out: Path) -> None:
    """Ask about drawn scenes or clips, print the results and write them into a folder."""
    from rich.progress import Progress
    from transformers.utils.logging import disable_progress_bar

    from eadp.evaluate import pocket_benchmark
    from eadp.evaluate.journal import Journal

    disable_progress_bar()  # the bar for loading weights: one bar is enough
    specs, total = run.specs(), run.samples or DEFAULT_QUESTIONS
    with Journal.open(out, pocket_benchmark.journal_settings(run.model)) as journal, Progress() as progress:
        task = progress.add_task(f"{len(specs)} settings", total=len(specs) * total)
        report = pocket_benchmark.evaluate(
            specs, total, progress=lambda answers: progress.advance(task, answers), model=run.model, journal=journal
        )
        _write(report, run, out)


def run_photo(run: OfflineRun, out: Path, stamps: Path | None) -> None:
    """Ask about photographs, print the results and write them into a folder.

    Args:
        run: The run.
        out: The folder.
        stamps: The folder of Tux Paint's stamps; None for where Debian puts it.

    Raises:
        ValueError: If photographs are missing, or a method does not run on the model's vision tower.
    """
    from rich.progress import Progress
    from transformers.utils.logging import disable_progress_bar

    from eadp.evaluate import photo_questions, pocket_benchmark
    from eadp.evaluate.journal import Journal
    from eadp.evaluate.photo_data import STAMPS, PhotoData
    from eadp.pocket.photo.model import LONGEST_ANSWER
    from eadp.pocket.worlds import PHOTOGRAPHS

    disable_progress_bar()
    specs, left_out = photo_questions.select_specs(run.specs(), run.methods, run.model)
    try:
        photos = list(PhotoData.find(stamps or STAMPS).photos())
        settings = photo_questions.journal_settings(run.model, photos)
    except (FileNotFoundError, ImportError) as error:
        raise ValueError(str(error)) from error
    questions = list(photo_questions.make_questions(photos))
    total = min(run.samples or len(questions), len(questions))
    with Journal.open(out, settings) as journal, Progress() as progress:
        task = progress.add_task(f"{len(specs)} settings", total=len(specs) * total)
        report = pocket_benchmark.ask(
            specs,
            questions,
            total,
            PHOTOGRAPHS,
            lambda answers: progress.advance(task, answers),
            model=run.model,
            journal=journal,
            batch=PHOTO_BATCH,
            longest_answer=LONGEST_ANSWER,
        )
        _write(report, run, out)
    if left_out:
        get_console().print(photo_questions.describe_left_out(left_out))


def _write(report: PocketReport, run: OfflineRun, out: Path) -> None:
    from eadp.evaluate import compare, pocket_report

    written = pocket_report.write(report, out, run.hard)
    print_full_width(pocket_report.as_table(report))
    for title, part in (pocket_report.hard_reports(report) if run.hard else {}).items():
        if part.kinds:
            print_full_width(pocket_report.as_table(part, title))
        else:
            get_console().print(f"{title}: none")
    if differences := compare.compare_with_others(report.outcomes):
        print_full_width(compare.as_table(differences))
    get_console().print("written: " + ", ".join(str(path) for path in written))
