"""`eadp demo`: a model that runs offline answers questions about drawn scenes, unpruned and pruned."""

from __future__ import annotations

import statistics
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from rich.console import Console
from rich.table import Table

from eadp.core import Relevance, Selection
from eadp.models.prompt import build_inputs
from eadp.pocket import guide, load
from eadp.pocket.names import POCKET, SMOL, THINGS
from eadp.pocket.samples import Sample
from eadp.pocket.worlds import samples_for
from eadp.runtime import attach
from eadp.view.comparer import generate_answer, time_prefill
from eadp.view.panels import draw_heatmap_panel, draw_image_panel, draw_kept_panel
from eadp.view.selection import build_comparison
from eadp.view.text import TextWriter

SCALE = 2
"""Magnification of the scenes in the figure."""

GAP, CAPTION = 12, 26
"""Pixels between panels, and height of the line of text above a row of panels."""


INTRODUCTIONS = {
    POCKET: "The pocket model: a small LLaVA that ships with the package and knows a toy world of drawn scenes.",
    THINGS: "The model things: a small LLaVA that ships with the package and knows scenes of everyday things.",
    SMOL: "The model smol: SmolLM2-135M-Instruct with a small vision tower that knows scenes of everyday things.",
}
REMARKS = {
    POCKET: "The pocket model is so small that there is little to save; pruning pays off on larger models: try "
    "`eadp demo --model smol`.",
    THINGS: "This model is small, so there is little to save; pruning pays off on larger ones: try "
    "`eadp demo --model smol`.",
    SMOL: "smol is a toy, and its answers are often wrong, with all tokens as well; the times are those of a real "
    "language model of 135 million parameters.",
}


@torch.inference_mode()
def run(keep: float, questions: int, out: Path, name: str = POCKET) -> None:
    """Ask questions, print both answers and the times, and draw what was kept.

    Args:
        keep: Share of the visual tokens that stay.
        questions: Number of questions.
        out: The image file to write.
        name: The model: `pocket`, `things` or `smol`.

    Raises:
        FileNotFoundError: If the weights of SmolLM2 are not installed.
        ImportError: If the package that reads them is not installed.
    """
    console = Console()
    console.print(INTRODUCTIONS[name])
    model, processor = load(name)
    text_guide = guide(model, processor)
    table = Table("question", "all tokens", f"{keep:.4g} of them", "right answer", "coverage")
    panels: list[tuple[Sample, Selection]] = []
    unpruned_ms, pruned_ms = [], []
    for sample in samples_for(name, "test", questions):
        inputs = build_inputs(processor, [sample.image], [sample.question])
        unpruned_answer = generate_answer(model, processor, inputs)
        with attach(model, processor, keep=keep, guide=text_guide) as pruned:
            pruned_answer = generate_answer(model, processor, inputs)
            selection = pruned.last[0]
        for _ in range(3):
            unpruned_ms.append(time_prefill(model, inputs))
            with attach(model, processor, keep=keep, guide=text_guide):
                pruned_ms.append(time_prefill(model, inputs))
        panels.append((sample, selection))
        table.add_row(sample.question, unpruned_answer, pruned_answer, sample.answer, f"{selection.coverage:.1%}")
    console.print(table)
    _, selection = panels[0]
    console.print(_word_table(selection.relevance))
    tokens, kept = selection.total, len(selection)
    before, after = statistics.median(unpruned_ms), statistics.median(pruned_ms)
    console.print(
        f"{tokens} visual tokens → {kept}. Prefill, all parts included (vision tower, text guide, selection, language "
        f"model): {before:.1f} ms → {after:.1f} ms, ratio {after / before:.2f}."
    )
    console.print(REMARKS[name])
    out.parent.mkdir(parents=True, exist_ok=True)
    draw_figure(panels[:4]).save(out)
    console.print(f"image: {out}")


def _word_table(relevance: Relevance | None) -> Table:
    """Build a table of the first question's words, those with the lowest entropy first."""
    table = Table("word", "entropy", "kept", title="words of the first question, by entropy")
    if relevance is not None and relevance.words is not None:
        entropy, kept = relevance.word_entropy, relevance.word_kept
        for i in entropy.argsort().tolist():
            table.add_row(relevance.words[i], f"{entropy[i]:.2f}", "yes" if kept[i] else "")
    return table


def draw_figure(panels: list[tuple[Sample, Selection]]) -> Image.Image:
    """Draw one row per question: the scene, its relevance map, and the kept tokens highlighted."""
    side = panels[0][0].image.width * SCALE
    figure = Image.new("RGB", (3 * side + 2 * GAP, len(panels) * (side + CAPTION + GAP)), "white")
    writer = TextWriter(ImageDraw.Draw(figure), 15)
    for row, (sample, selection) in enumerate(panels):
        top = row * (side + CAPTION + GAP)
        writer.write(2, top + 18, f"{sample.question}   {len(selection)} of {selection.total} tokens")
        comparison = build_comparison(selection, sample.image, None, sample.question)
        result = comparison.results[0]
        heatmap = selection.mask.float() if result.heatmap is None else result.heatmap
        row_panels = (
            draw_image_panel(comparison, side),
            draw_heatmap_panel(comparison, heatmap, side),
            draw_kept_panel(comparison, result, side),
        )
        for column, panel in enumerate(row_panels):
            figure.paste(panel, (column * (side + GAP), top + CAPTION))
    return figure
