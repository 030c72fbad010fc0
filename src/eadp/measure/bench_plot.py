"""A measurement as a picture: the prefill's time stacked by part, and accuracy against latency where it is known."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from eadp.measure.bench import BenchReport, Measured
from eadp.measure.bench_setup import read_outcomes
from eadp.measure.stopwatch import PARTS
from eadp.utils.palette import BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILLION, YELLOW

_COLOURS = ("#999999", PURPLE, ORANGE, YELLOW, GREEN, BLUE, SKY_BLUE, VERMILLION, "#dddddd")
COLOURS = dict(zip(PARTS, _COLOURS, strict=True))
"""By part of the prefill; grey for the parts that pruning does not touch."""


def draw(report: BenchReport, path: Path, accuracy: Path | None = None) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    points = None if accuracy is None else accuracies(report, accuracy)
    height = 1.6 + 0.34 * len(report.rows)
    panels = 1 if points is None else 2
    figure, axes = plt.subplots(
        1, panels, figsize=(8.5 if panels == 1 else 13, height), squeeze=False, layout="constrained"
    )
    _stacked(axes[0, 0], report)
    if points is not None:
        _against_latency(axes[0, 1], report, points)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _stacked(axis: Any, report: BenchReport) -> None:
    whole = median(report.base.values("prefill"))
    labels = [str(row.row) for row in report.rows]
    left = [0.0] * len(report.rows)
    for name in PARTS:
        widths = [row.part(name).median / whole for row in report.rows]
        axis.barh(labels, widths, left=left, color=COLOURS[name], label=name, edgecolor="white", linewidth=0.4)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axis.invert_yaxis()
    axis.axvline(1, color="grey", linewidth=0.8, linestyle="--")
    axis.set(xlabel="prefill, of the unpruned model's", title=report.model)
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))


def _against_latency(axis: Any, report: BenchReport, points: list[tuple[Measured, float]]) -> None:
    methods: dict[str, list[tuple[float, float]]] = {}
    for row, right in points:
        ratio = report.ratio(row, "latency")
        assert ratio is not None  # Every run has a latency.
        methods.setdefault(row.row.name, []).append((ratio.median, 100 * right))
    for name, found in methods.items():
        axis.plot(*zip(*sorted(found), strict=True), marker="o", label=name)
    axis.set(xlabel="whole answer, of the unpruned model's time", ylabel="accuracy, %")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)


def accuracies(report: BenchReport, path: Path) -> list[tuple[Measured, float]]:
    """The rows whose accuracy a results.json of `eadp eval` knows: the same method with as many tokens left."""
    found = [
        (row, right)
        for row in report.rows
        for method, tokens, right in read_outcomes(path)
        if method == row.row.name and abs(tokens - median(row.values("after"))) < 1
    ]
    if not found:
        raise ValueError(
            f"{path} knows none of these methods at these budgets: evaluate with the same --methods and --keep"
        )
    return found
