"""A sweep as tables, as files and as plots."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from eadp.evaluate.sweep import Blocks, SweepPlan, SweepResult, ablations
from eadp.utils.files import replace_file
from eadp.utils.palette import OKABE_ITO
from eadp.utils.tables import NOTHING, format_markdown

PAPER = "paper: LLaVA-1.5-7B, 128 tokens, mean of five"
CHANCE = "Significant: at 95 %, uncorrected. Of twenty intervals one misses by chance alone."


def head(blocks: Blocks, beside_paper: bool = False) -> list[str]:
    figure = ["figure"] if _has_figures(blocks) else []
    paper = [PAPER] if beside_paper else []
    return ["setting", *figure, "score", "95 %", "to default", "95 % of it", "significant", *paper]


def rows(blocks: Blocks, beside_paper: bool = False) -> Iterator[list[list[str]]]:
    """Block by block: what is changed, the score, its difference to the default, whether that is significant."""
    printed = ablations() if beside_paper else {}
    for block in blocks:
        lines = []
        for tried in block:
            line = [_changed(tried)]
            if _has_figures(blocks):
                line.append(NOTHING if tried.figure is None else f"{tried.figure:.1f}")
            line += [*_score(tried), *_against(tried)]
            if beside_paper:
                (item,) = tried.point.changed.items()
                line.append(f"{printed[item]:.1f}" if item in printed else NOTHING)
            lines.append(line)
        yield lines


def _score(tried: SweepResult) -> list[str]:
    if tried.scores is None:
        return [NOTHING] * 2
    mean, low, high = tried.scores
    return [f"{mean:.1f}", f"{low:.1f}–{high:.1f}"]


def _against(tried: SweepResult) -> list[str]:
    found = tried.against
    if tried.is_base or found is None:
        return ["default" if tried.is_base else NOTHING, "", ""]
    return [f"{found.difference:+.1f}", f"{found.low:+.1f} to {found.high:+.1f}", "yes" if found.significant else "no"]


def title(plan: SweepPlan, name: str, blocks: Blocks) -> str:
    samples = next((tried.against.samples for block in blocks for tried in block if tried.against), None)
    return f"{name}: {plan.base}" + (f", {samples:,} samples; scores in percent" if samples else "")


def as_table(plan: SweepPlan, name: str, blocks: Blocks, beside_paper: bool = False) -> Table:
    table = Table(title=title(plan, name, blocks), caption=CHANCE, box=box.SIMPLE_HEAD)
    for column in head(blocks, beside_paper):
        table.add_column(column, justify="left" if column == "setting" else "right", no_wrap=column != PAPER)
    for lines in rows(blocks, beside_paper):
        for line in lines:
            table.add_row(*line)
        table.add_section()
    return table


def as_markdown(plan: SweepPlan, name: str, blocks: Blocks, beside_paper: bool = False) -> str:
    lines = (line for block in rows(blocks, beside_paper) for line in block)
    text = format_markdown(head(blocks, beside_paper), lines)
    return f"{title(plan, name, blocks)}. {CHANCE}\n\n{text}\n"


def as_json(plan: SweepPlan, found: Mapping[str, Blocks]) -> dict[str, Any]:
    return {
        "default": plan.base.key,
        "benchmarks": {name: [[_record(tried) for tried in block] for block in found[name]] for name in found},
    }


def _record(tried: SweepResult) -> dict[str, Any]:
    mean, *interval = tried.scores or (None,)
    return {
        "changed": tried.point.changed,
        "setting": tried.point.spec.key,
        "figure": tried.figure,
        "score": mean,
        "interval": interval,
        "against_default": {**asdict(tried.against), "significant": tried.against.significant}
        if tried.against
        else None,
    }


def write(plan: SweepPlan, found: Mapping[str, Blocks], folder: Path, beside_paper: bool = False) -> list[Path]:
    """sweep.json, sweep.md and, where matplotlib is there, a plot for each benchmark."""
    written = [folder / "sweep.json", folder / "sweep.md"]
    replace_file(written[0], json.dumps(as_json(plan, found), indent=1) + "\n")
    replace_file(written[1], "\n".join(as_markdown(plan, name, found[name], beside_paper) for name in found))
    try:
        import matplotlib
    except ImportError:
        return written
    matplotlib.use("Agg")
    return written + [plot(plan, name, found[name], folder / f"sweep-{name}.png") for name in found]


def plot(plan: SweepPlan, name: str, blocks: Blocks, path: Path) -> Path:
    """A panel a block: score against value with 95 % intervals, the default ringed. Of combinations, the first
    setting lies along the axis and each combination of the others is a line."""
    import matplotlib.pyplot as plt

    columns = min(4, len(blocks))
    height = -(-len(blocks) // columns)
    figure, panels = plt.subplots(
        height, columns, figsize=(3.2 * columns, 2.8 * height), sharey=True, squeeze=False, layout="constrained"
    )
    for panel in panels.flat[len(blocks) :]:
        panel.set_visible(False)
    for panel, block in zip(panels.flat, blocks, strict=False):
        _panel(panel, block)
    for row in panels:
        row[0].set_ylabel("figure" if _has_figures(blocks) else "score, %")
    figure.suptitle(f"{title(plan, name, blocks)}; ringed: default", fontsize=10)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _panel(panel: Any, block: Sequence[SweepResult]) -> None:
    first = next(iter(block[0].point.changed))
    values = dict.fromkeys(str(tried.point.changed[first]) for tried in block)
    places = {value: x for x, value in enumerate(values)}
    for colour, (label, line) in zip(OKABE_ITO * 3, _lines(block, first).items(), strict=False):
        known = [tried for tried in line if _height(tried) is not None]
        x = [places[str(tried.point.changed[first])] for tried in known]
        joined = "none" if isinstance(block[0].point.changed[first], str) else "-"
        how = {"marker": "o", "linestyle": joined, "capsize": 3, "color": colour, "label": label}
        panel.errorbar(x, [_height(t) for t in known], _reach(known), **how)
        for tried in known:
            if tried.is_base:
                place = places[str(tried.point.changed[first])]
                panel.plot(place, _height(tried), "o", markersize=12, fillstyle="none", color="grey")
    long = any(len(value) > 6 for value in places)
    panel.set_xticks(list(places.values()), list(places), rotation=20 if long else 0, fontsize=8 if long else None)
    panel.set(xlabel=first)
    panel.grid(alpha=0.3)
    if len(block[0].point.changed) > 1:
        panel.legend(frameon=False, fontsize=8)


def _height(tried: SweepResult) -> float | None:
    return tried.figure if tried.figure is not None else tried.scores[0] if tried.scores else None


def _reach(line: Sequence[SweepResult]) -> list[list[float]] | None:
    """Below and above: the interval of the scores; none for a figure in another measure."""
    scores = [tried.scores for tried in line if tried.figure is None and tried.scores]
    return (
        [[m - low for m, low, _ in scores], [high - m for m, _, high in scores]] if len(scores) == len(line) else None
    )


def _lines(block: Sequence[SweepResult], first: str) -> dict[str, list[SweepResult]]:
    found: dict[str, list[SweepResult]] = {}
    for tried in block:
        others = ", ".join(f"{name}={value}" for name, value in tried.point.changed.items() if name != first)
        found.setdefault(others, []).append(tried)
    return found


def _has_figures(blocks: Blocks) -> bool:
    return any(tried.figure is not None for block in blocks for tried in block)


def _changed(tried: SweepResult) -> str:
    return ", ".join(f"{name}={value}" for name, value in tried.point.changed.items())
