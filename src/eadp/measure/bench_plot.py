"""A plot of a measurement: the prefill's time stacked by part and, if known, accuracy against latency."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from eadp.measure.bench import BenchReport, BenchResult
from eadp.measure.bench_setup import read_outcomes
from eadp.measure.stopwatch import PARTS
from eadp.utils.palette import BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILLION, YELLOW

_COLOURS = ("#999999", PURPLE, ORANGE, YELLOW, GREEN, BLUE, SKY_BLUE, VERMILLION, "#dddddd")
COLOURS = dict(zip(PARTS, _COLOURS, strict=True))
"""The colour of each part of the prefill. The vision tower and the rest are grey: pruning does not change them."""


def draw_plot(report: BenchReport, path: Path, accuracy: Path | None = None) -> Path:
    """Draw a report into an image file.

    Args:
        report: The report.
        path: The file to write.
        accuracy: A results.json of `eadp eval`; it adds a panel with accuracy against latency.

    Returns:
        The path.

    Raises:
        ValueError: If the file of accuracies cannot be read, or shares no row with the report.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    points = None if accuracy is None else match_accuracies(report, accuracy)
    height = 1.6 + 0.34 * len(report.results)
    panels = 1 if points is None else 2
    figure, axes = plt.subplots(
        1, panels, figsize=(8.5 if panels == 1 else 13, height), squeeze=False, layout="constrained"
    )
    _plot_parts(axes[0, 0], report)
    if points is not None:
        _plot_accuracy(axes[0, 1], report, points)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _plot_parts(axis: Any, report: BenchReport) -> None:
    unpruned = median(report.baseline.values("prefill"))
    labels = [str(result.row) for result in report.results]
    left = [0.0] * len(report.results)
    for name in PARTS:
        widths = [result.part(name).median / unpruned for result in report.results]
        axis.barh(labels, widths, left=left, color=COLOURS[name], label=name, edgecolor="white", linewidth=0.4)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axis.invert_yaxis()
    axis.axvline(1, color="grey", linewidth=0.8, linestyle="--")
    axis.set(xlabel="prefill time, relative to the unpruned model", title=report.model)
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))


def _plot_accuracy(axis: Any, report: BenchReport, points: list[tuple[BenchResult, float]]) -> None:
    methods: dict[str, list[tuple[float, float]]] = {}
    for result, accuracy in points:
        ratio = report.ratio(result, "latency")
        assert ratio is not None  # Every run has a latency.
        methods.setdefault(result.row.name, []).append((ratio.median, 100 * accuracy))
    for name, found in methods.items():
        axis.plot(*zip(*sorted(found), strict=True), marker="o", label=name)
    axis.set(xlabel="time of the whole answer, relative to the unpruned model", ylabel="accuracy, %")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)


def match_accuracies(report: BenchReport, path: Path) -> list[tuple[BenchResult, float]]:
    """Find the accuracy of each result in a results.json of `eadp eval`: same method, same number of tokens left.

    Raises:
        ValueError: If the file cannot be read, or shares no row with the report.
    """
    found = [
        (result, accuracy)
        for result in report.results
        for method, tokens, accuracy in read_outcomes(path)
        if method == result.row.name and abs(tokens - median(result.values("after"))) < 1
    ]
    if not found:
        raise ValueError(
            f"{path} has none of these methods at these budgets: run `eadp eval` with the same --methods and --keep"
        )
    return found
