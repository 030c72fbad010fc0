"""Measure how long each method takes to select the tokens of one image, before the language model.

All methods get the same tokens, words and attention, with the sizes of LLaVA-1.5-7B (576 tokens) and Qwen2.5-VL-3B
(1,296). They take turns within one run, in CPU time on one thread, and are compared by their ratio to EADP. The work
before the selection is not included: the text guide, the attention of one layer of the tower, and for `downsample` the
second run of the tower.

    python benchmarks/methods.py
"""

from __future__ import annotations

from functools import partial
from typing import Any

import common
import torch
import typer
from rich.console import Console
from rich.table import Table

from eadp import TextGuide, VisualTokens
from eadp.core import Grid, TowerAttention
from eadp.methods import BeforeMethod, get_method_class, list_methods
from eadp.utils.tables import format_markdown

CASES: dict[str, tuple[Grid, int, int]] = {  # Grid, width of the tokens, depth of the tower.
    "LLaVA-1.5-7B": ((24, 24), 4096, 24),
    "Qwen2.5-VL-3B": ((36, 36), 2048, 32),
}
KEEPS = (64, 128)
WORDS, SHARED, TOWER = 30, 768, 1024
"""Words of the question, width of the space that text and image share, width of the tower."""

BEFORE = [
    each for name in list_methods() if issubclass(each := get_method_class(name), BeforeMethod) and each.takes_budget
]


def make_tokens(grid: Grid, width: int, method: BeforeMethod, depth: int) -> VisualTokens:
    """Make the tokens of an image, the same ones for every method, with everything that the method needs."""
    n, g = grid[0] * grid[1], torch.Generator().manual_seed(1)
    aligned = torch.randn(n, SHARED, generator=g)
    cls, received = torch.rand(2, n, generator=g) / n
    keys = torch.randn(n, 16, 64, generator=g)
    layers = method.vision_layers(depth, "llava")
    resolutions = method.choose_resolutions([grid], square=False)
    return VisualTokens(
        common.image_like(*grid, width),
        aligned,
        [grid],
        attention=[TowerAttention(layer, depth, keys, cls, received, cls) for layer in layers],
        tower=torch.randn(n, TOWER, generator=g),
        tower_cls=torch.randn(1, TOWER, generator=g),
        downsampled=torch.randn(sum(rows * columns for rows, columns in resolutions), width, generator=g)
        if resolutions
        else None,
        downsampled_grids=resolutions,
    )


def measure(name: str, keep: int, repeats: int) -> dict[str, Any]:
    grid, width, depth = CASES[name]
    words = torch.randn(WORDS, SHARED, generator=torch.Generator().manual_seed(2))
    text = TextGuide(words, words.mean(0))
    methods = [method(keep=keep) for method in BEFORE]
    calls = {method.name: partial(method.select, make_tokens(grid, width, method, depth), text) for method in methods}
    return {
        "model": name,
        "n": grid[0] * grid[1],
        "k": keep,
        "ms": common.medians(common.time_interleaved(calls, repeats)),
    }


def main(repeats: int = 15) -> None:
    """Measure, print, and write benchmarks/results/methods.json and the table in docs/methods/before.md."""
    common.use_one_thread()
    rows = [measure(name, keep, repeats) for name in CASES for keep in KEEPS]
    head = ["method", *(f"N={row['n']} K={row['k']}" for row in rows)]
    table, lines = Table(*head, title="time of the selection, as a ratio to EADP's"), []
    for method in sorted(rows[0]["ms"], key=lambda name: rows[0]["ms"][name]):
        lines.append([method, *(f"{row['ms'][method] / row['ms']['eadp']:.2f}" for row in rows)])
        table.add_row(*lines[-1])
    common.write_into(common.ROOT / "docs" / "methods" / "before.md", "methods", format_markdown(head, lines))
    console = Console()
    console.print(table)
    console.print(f"written: {common.save('methods', {'cases': rows}).relative_to(common.ROOT)}")


if __name__ == "__main__":
    typer.run(main)
