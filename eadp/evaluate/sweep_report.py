"""A sweep as a table, as files and as a plot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from eadp.evaluate import files
from eadp.evaluate.report import COLOURS
from eadp.evaluate.sweep import Plan, Tried, ablations

PAPER = "paper: LLaVA-1.5-7B, 128 tokens, mean of five"
CHANCE = "Of twenty intervals one misses by chance alone."

Blocks = Sequence[Sequence[Tried]]


def rows(blocks: Blocks, beside_paper: bool = False) -> Iterator[list[list[str]]]:
    """Block by block: what is changed, score, interval, difference to the default, its interval, whether it is real."""
    printed = ablations() if beside_paper else {}
    for block in blocks:
        lines = []
        for tried in block:
            (low, high), against = tried.interval, tried.against
            score = [_changed(tried), f"{tried.mean:.1f}", f"{low:.1f}–{high:.1f}"]
            gap = [
                f"{against.difference:+.1f}",
                f"{against.low:+.1f} to {against.high:+.1f}",
                "yes" if against.real else "no",
            ]
            figure = [f"{printed[item]:.1f}" for item in tried.point.changed.items() if item in printed]
            lines.append([*score, *(["default", "", ""] if tried.is_base else gap), *(figure if beside_paper else [])])
        yield lines


def head(beside_paper: bool = False) -> list[str]:
    return ["setting", "score", "95 %", "to default", "95 % of it", "real", *([PAPER] if beside_paper else [])]


def title(plan: Plan, suite: str, samples: int) -> str:
    return f"{suite}: {plan.base}, {samples:,} samples; score in percent"


def as_table(plan: Plan, blocks: Blocks, suite: str, beside_paper: bool = False) -> Table:
    table = Table(title=title(plan, suite, _samples(blocks)), caption=CHANCE, box=box.SIMPLE_HEAD)
    for column in head(beside_paper):
        table.add_column(column, justify="left" if column == "setting" else "right", no_wrap=column != PAPER)
    for lines in rows(blocks, beside_paper):
        for line in lines:
            table.add_row(*line)
        table.add_section()
    return table


def as_markdown(plan: Plan, blocks: Blocks, suite: str, beside_paper: bool = False) -> str:
    columns = head(beside_paper)
    lines = [columns, ["---"] * len(columns), *(line for block in rows(blocks, beside_paper) for line in block)]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{title(plan, suite, _samples(blocks))}. {CHANCE}\n\n{text}\n"


def as_json(plan: Plan, blocks: Blocks, suite: str) -> dict[str, Any]:
    return {
        "suite": suite,
        "samples": _samples(blocks),
        "base": plan.base.key,
        "blocks": [
            [
                {
                    "changed": tried.point.changed,
                    "setting": tried.point.setting.key,
                    "score": tried.mean,
                    "interval": tried.interval,
                    "against_default": {**asdict(tried.against), "real": tried.against.real},
                }
                for tried in block
            ]
            for block in blocks
        ],
    }


def write(plan: Plan, blocks: Blocks, suite: str, folder: Path, beside_paper: bool = False) -> list[Path]:
    """sweep.json, sweep.md and, where matplotlib is there, sweep.png."""
    written = [folder / "sweep.json", folder / "sweep.md"]
    files.replace(written[0], json.dumps(as_json(plan, blocks, suite), indent=1) + "\n")
    files.replace(written[1], as_markdown(plan, blocks, suite, beside_paper))
    try:
        import matplotlib
    except ImportError:
        return written
    matplotlib.use("Agg")
    return [*written, plot(plan, blocks, suite, folder / "sweep.png")]


def plot(plan: Plan, blocks: Blocks, suite: str, path: Path) -> Path:
    """A panel a block: score against value with 95 % intervals, the default as a line. Of combinations, the first
    setting lies along the axis and each combination of the others is a line."""
    import matplotlib.pyplot as plt

    columns = min(4, len(blocks))
    height = -(-len(blocks) // columns)
    figure, panels = plt.subplots(
        height, columns, figsize=(3.2 * columns, 2.8 * height), sharey=True, squeeze=False, layout="constrained"
    )
    base = blocks[0][0].against.mean_b
    for panel in panels.flat[len(blocks) :]:
        panel.set_visible(False)
    for panel, block in zip(panels.flat, blocks, strict=False):
        first = next(iter(block[0].point.changed))
        places = {str(value): x for x, value in enumerate(dict.fromkeys(str(t.point.changed[first]) for t in block))}
        for colour, (label, line) in zip(COLOURS * 3, _lines(block, first).items(), strict=False):
            x = [places[str(tried.point.changed[first])] for tried in line]
            y = [tried.mean for tried in line]
            reach = [[t.mean - t.interval[0] for t in line], [t.interval[1] - t.mean for t in line]]
            panel.errorbar(x, y, yerr=reach, marker="o", capsize=3, color=colour, label=label)
        panel.axhline(base, color="grey", linestyle="--", linewidth=1)
        panel.set(xlabel=first)
        long = any(len(value) > 6 for value in places)
        panel.set_xticks(list(places.values()), list(places), rotation=20 if long else 0, fontsize=8 if long else None)
        panel.grid(alpha=0.3)
        if len(block[0].point.changed) > 1:
            panel.legend(frameon=False, fontsize=8)
    for row in panels:
        row[0].set_ylabel("score, %")
    figure.suptitle(f"{title(plan, suite, _samples(blocks))}; dashed: default", fontsize=10)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _lines(block: Sequence[Tried], first: str) -> dict[str, list[Tried]]:
    found: dict[str, list[Tried]] = {}
    for tried in block:
        others = ", ".join(f"{name}={value}" for name, value in tried.point.changed.items() if name != first)
        found.setdefault(others, []).append(tried)
    return found


def _changed(tried: Tried) -> str:
    return ", ".join(f"{name}={value}" for name, value in tried.point.changed.items())


def _samples(blocks: Blocks) -> int:
    return blocks[0][0].against.samples
