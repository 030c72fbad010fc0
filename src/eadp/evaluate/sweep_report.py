"""The report of a sweep, as tables, as files and as plots."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from eadp.evaluate.sweep import Blocks, SweepPlan, SweepResult, paper_averages
from eadp.utils.files import replace_file
from eadp.utils.palette import OKABE_ITO
from eadp.utils.tables import NOTHING, format_markdown

PAPER_COLUMN = "paper: LLaVA-1.5-7B, 128 tokens, mean of five"
HARD_COLUMN = "hard samples"
HARD_NOTE = "Hard: samples that downsample with the same budget does not answer right."
SIGNIFICANCE_NOTE = "Significant: at 95 %, uncorrected. Of twenty intervals one misses by chance alone."


def build_header(blocks: Blocks, with_paper: bool = False) -> list[str]:
    """Return the names of the columns."""
    reported = ["figure"] if _has_reported(blocks) else []
    paper = [PAPER_COLUMN] if with_paper else []
    hard = [HARD_COLUMN] if _has_hard(blocks) else []
    return ["setting", *reported, "score", "95 %", "to default", "95 % of it", "significant", "loyalty", *hard, *paper]


def build_rows(blocks: Blocks, with_paper: bool = False) -> Iterator[list[list[str]]]:
    """Yield the rows of each block: settings, score, difference to the default, and whether it is significant."""
    averages = paper_averages() if with_paper else {}
    for block in blocks:
        rows = []
        for result in block:
            row = [_format_changes(result)]
            if _has_reported(blocks):
                row.append(NOTHING if result.reported is None else f"{result.reported:.1f}")
            loyal = NOTHING if result.loyalty is None else f"{100 * result.loyalty:.1f}"
            row += [*_score_cells(result), *_difference_cells(result), loyal]
            if _has_hard(blocks):
                row.append(NOTHING if result.hard is None else f"{result.hard[0]:.1f} of {result.hard[1]:,}")
            if with_paper:
                (item,) = result.point.changed.items()
                row.append(f"{averages[item]:.1f}" if item in averages else NOTHING)
            rows.append(row)
        yield rows


def _score_cells(result: SweepResult) -> list[str]:
    if result.score is None:
        return [NOTHING] * 2
    mean, low, high = result.score
    return [f"{mean:.1f}", f"{low:.1f}–{high:.1f}"]


def _difference_cells(result: SweepResult) -> list[str]:
    found = result.difference
    if result.is_default or found is None:
        return ["default" if result.is_default else NOTHING, "", ""]
    return [f"{found.difference:+.1f}", f"{found.low:+.1f} to {found.high:+.1f}", "yes" if found.significant else "no"]


def build_title(plan: SweepPlan, benchmark: str, blocks: Blocks) -> str:
    """Return the title: the benchmark, the default setting and the number of samples."""
    samples = next((result.difference.samples for block in blocks for result in block if result.difference), None)
    return f"{benchmark}: {plan.default}" + (f", {samples:,} samples; scores in percent" if samples else "")


def as_table(plan: SweepPlan, benchmark: str, blocks: Blocks, with_paper: bool = False) -> Table:
    """Build the table of one benchmark for the terminal.

    Args:
        plan: The sweep.
        benchmark: The name of the benchmark.
        blocks: The results on this benchmark.
        with_paper: Add a column with the averages of the paper's ablations.
    """
    table = Table(title=build_title(plan, benchmark, blocks), caption=_note(blocks), box=box.SIMPLE_HEAD)
    for column in build_header(blocks, with_paper):
        table.add_column(column, justify="left" if column == "setting" else "right", no_wrap=column != PAPER_COLUMN)
    for rows in build_rows(blocks, with_paper):
        for row in rows:
            table.add_row(*row)
        table.add_section()
    return table


def as_markdown(plan: SweepPlan, benchmark: str, blocks: Blocks, with_paper: bool = False) -> str:
    """Format the table of one benchmark as Markdown, with its title; the arguments are those of `as_table`."""
    rows = (row for block in build_rows(blocks, with_paper) for row in block)
    text = format_markdown(build_header(blocks, with_paper), rows)
    return f"{build_title(plan, benchmark, blocks)}. {_note(blocks)}\n\n{text}\n"


def as_json(plan: SweepPlan, results: Mapping[str, Blocks]) -> dict[str, Any]:
    """Return the content of sweep.json."""
    return {
        "default": plan.default.key,
        "benchmarks": {
            benchmark: [[_build_record(result) for result in block] for block in blocks]
            for benchmark, blocks in results.items()
        },
    }


def _build_record(result: SweepResult) -> dict[str, Any]:
    mean, *interval = result.score or (None,)
    difference = result.difference
    return {
        "changed": result.point.changed,
        "setting": result.point.spec.key,
        "figure": result.reported,
        "score": mean,
        "interval": interval,
        "loyalty": result.loyalty,
        "hard": None if result.hard is None else {"score": result.hard[0], "samples": result.hard[1]},
        "against_default": {**asdict(difference), "significant": difference.significant} if difference else None,
    }


def write(plan: SweepPlan, results: Mapping[str, Blocks], folder: Path, with_paper: bool = False) -> list[Path]:
    """Write sweep.json, sweep.md and, if matplotlib is installed, a plot per benchmark; return their paths."""
    written = [folder / "sweep.json", folder / "sweep.md"]
    replace_file(written[0], json.dumps(as_json(plan, results), indent=1) + "\n")
    replace_file(written[1], "\n".join(as_markdown(plan, name, results[name], with_paper) for name in results))
    try:
        import matplotlib
    except ImportError:
        return written
    matplotlib.use("Agg")
    return written + [plot(plan, name, results[name], folder / f"sweep-{name}.png") for name in results]


def plot(plan: SweepPlan, benchmark: str, blocks: Blocks, path: Path) -> Path:
    """Plot score against value with 95 % intervals, in one panel per block, with a ring around the default.

    For combinations, the first setting is the x axis, and each combination of the others is a line.
    """
    import matplotlib.pyplot as plt

    columns = min(4, len(blocks))
    height = -(-len(blocks) // columns)
    figure, panels = plt.subplots(
        height, columns, figsize=(3.2 * columns, 2.8 * height), sharey=True, squeeze=False, layout="constrained"
    )
    for panel in panels.flat[len(blocks) :]:
        panel.set_visible(False)
    for panel, block in zip(panels.flat, blocks, strict=False):
        _draw_panel(panel, block)
    for row in panels:
        row[0].set_ylabel("figure" if _has_reported(blocks) else "score, %")
    figure.suptitle(f"{build_title(plan, benchmark, blocks)}; ringed: default", fontsize=10)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _draw_panel(panel: Any, block: Sequence[SweepResult]) -> None:
    first = next(iter(block[0].point.changed))
    values = dict.fromkeys(str(result.point.changed[first]) for result in block)
    positions = {value: x for x, value in enumerate(values)}
    for colour, (label, line) in zip(OKABE_ITO * 3, _group_into_lines(block, first).items(), strict=False):
        known = [result for result in line if _plotted_value(result) is not None]
        x = [positions[str(result.point.changed[first])] for result in known]
        linestyle = "none" if isinstance(block[0].point.changed[first], str) else "-"
        style = {"marker": "o", "linestyle": linestyle, "capsize": 3, "color": colour, "label": label}
        panel.errorbar(x, [_plotted_value(result) for result in known], _error_bars(known), **style)
        for result in known:
            if result.is_default:
                position = positions[str(result.point.changed[first])]
                panel.plot(position, _plotted_value(result), "o", markersize=12, fillstyle="none", color="grey")
    long = any(len(value) > 6 for value in positions)
    ticks, labels = list(positions.values()), list(positions)
    panel.set_xticks(ticks, labels, rotation=20 if long else 0, fontsize=8 if long else None)
    panel.set(xlabel=first)
    panel.grid(alpha=0.3)
    if len(block[0].point.changed) > 1:
        panel.legend(frameon=False, fontsize=8)


def _plotted_value(result: SweepResult) -> float | None:
    return result.reported if result.reported is not None else result.score[0] if result.score else None


def _error_bars(line: Sequence[SweepResult]) -> list[list[float]] | None:
    """Return the lengths of the bars below and above the scores; None if the harness reports another measure."""
    scores = [result.score for result in line if result.reported is None and result.score]
    return (
        [[m - low for m, low, _ in scores], [high - m for m, _, high in scores]] if len(scores) == len(line) else None
    )


def _group_into_lines(block: Sequence[SweepResult], first: str) -> dict[str, list[SweepResult]]:
    lines: dict[str, list[SweepResult]] = {}
    for result in block:
        others = ", ".join(f"{name}={value}" for name, value in result.point.changed.items() if name != first)
        lines.setdefault(others, []).append(result)
    return lines


def _has_reported(blocks: Blocks) -> bool:
    return any(result.reported is not None for block in blocks for result in block)


def _has_hard(blocks: Blocks) -> bool:
    return any(result.hard is not None for block in blocks for result in block)


def _note(blocks: Blocks) -> str:
    return f"{SIGNIFICANCE_NOTE} {HARD_NOTE}" if _has_hard(blocks) else SIGNIFICANCE_NOTE


def _format_changes(result: SweepResult) -> str:
    return ", ".join(f"{name}={value}" for name, value in result.point.changed.items())
