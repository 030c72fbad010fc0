"""Measure how long each method takes to select the tokens of one image or clip, before the language model.

All methods get the same tokens, words and attention, with the sizes of LLaVA-1.5-7B (576 tokens), LLaVA-NeXT-7B (five
crops, 2,880 tokens) and LLaVA-Video-7B (64 frames of 169 tokens). They take turns within one run, in CPU time on one
thread, and are compared by their ratio to EADP. The work before the selection is not included: the text guide, the
attention of one layer of the tower, and for `downsample` the second run of the tower.

    python benchmarks/methods.py
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
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


@dataclass(frozen=True)
class Case:
    """Tokens to select from.

    Attributes:
        model: A model with as many tokens.
        grids: Rows and columns of each block.
        crops: Whether the blocks are crops of one image, not frames.
        keep: Number of tokens that stay.
        width: Width of the tokens.
        depth: Layers of the vision tower.
    """

    model: str
    grids: tuple[Grid, ...]
    crops: bool
    keep: int
    width: int
    depth: int

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return sum(rows * columns for rows, columns in self.grids)


CASES = (
    Case("LLaVA-1.5-7B", ((24, 24),), False, 64, 4096, 24),
    Case("LLaVA-NeXT-7B", ((24, 24),) * 5, True, 320, 4096, 24),
    Case("LLaVA-Video-7B", ((13, 13),) * 64, False, 2048, 3584, 26),
)
WORDS, SHARED, TOWER = 30, 768, 1024
"""Words of the question, width of the space that text and image share, width of the tower."""

BEFORE = [
    each for name in list_methods() if issubclass(each := get_method_class(name), BeforeMethod) and each.takes_budget
]


@cache
def shared_tokens(case: Case) -> VisualTokens:
    """Make the tokens of an image or a clip, which every method gets."""
    n, g = case.tokens, torch.Generator().manual_seed(1)
    features = torch.cat([common.image_like(*grid, case.width, seed) for seed, grid in enumerate(case.grids)])
    return VisualTokens(
        features,
        torch.randn(n, SHARED, generator=g),
        case.grids,
        (2, 2) if case.crops else None,
        tower=features[:, :TOWER].contiguous(),
        tower_cls=torch.randn(len(case.grids), TOWER, generator=g),
        tower_features=features[:, :TOWER].contiguous(),
        is_clip=len(case.grids) > 1 and not case.crops,
    )


def make_tokens(case: Case, method: BeforeMethod) -> VisualTokens:
    """Add what the method needs to the tokens."""
    n, g = case.tokens, torch.Generator().manual_seed(2)
    cls, received = torch.rand(2, n, generator=g) / n
    layers = method.vision_layers(case.depth, "llava")
    keys = torch.randn(n, 16, 64, generator=g) if layers else torch.empty(0)
    resolutions = method.choose_resolutions(case.grids, square=False)
    tokens = shared_tokens(case)
    if "word_embeddings" in method.needs:
        # Such methods compare words with the tokens as the language model gets them.
        tokens = replace(tokens, aligned=tokens.features)
    return replace(
        tokens,
        attention=[TowerAttention(layer, case.depth, keys, cls, received, cls) for layer in layers],
        downsampled=torch.randn(sum(rows * columns for rows, columns in resolutions), case.width, generator=g)
        if resolutions
        else None,
        downsampled_grids=resolutions,
    )


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """Time all methods on one case."""
    calls = {}
    for method in (each(keep=case.keep) for each in BEFORE):
        tokens = make_tokens(case, method)
        width = SHARED if tokens.aligned is None else tokens.aligned.shape[1]
        words = torch.randn(WORDS, width, generator=torch.Generator().manual_seed(3))
        calls[method.name] = partial(method.select, tokens, TextGuide(words, words.mean(0)))
    return {
        "model": case.model,
        "blocks": len(case.grids),
        "n": case.tokens,
        "k": case.keep,
        "ms": common.medians(common.time_interleaved(calls, repeats)),
    }


@torch.inference_mode()
def main(repeats: int = 7) -> None:
    """Measure, print, and write benchmarks/results/methods.json and the table in docs/methods/before.md."""
    common.use_one_thread()
    rows = [measure(case, repeats) for case in CASES]
    head = ["method", *(f"{row['k']:,} of {row['n']:,} ({row['model']})" for row in rows)]
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
