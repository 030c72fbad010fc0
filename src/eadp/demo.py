"""The pocket model asked about drawn scenes, with all visual tokens and with few: what `eadp demo` shows."""

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
from eadp.pocket.samples import Sample, samples
from eadp.runtime import attach
from eadp.view.comparer import generate_answer, time_prefill
from eadp.view.panels import draw_heatmap_panel, draw_image_panel, draw_kept_panel
from eadp.view.selection import build_comparison
from eadp.view.text import TextWriter

SCALE = 2
"""Pixels of the picture for each pixel of a scene."""

GAP, CAPTION = 12, 26


@torch.inference_mode()
def run(keep: float, questions: int, out: Path) -> None:
    console = Console()
    console.print("The pocket model: a small LLaVA that ships with the package and knows a toy world of drawn scenes.")
    model, processor = load()
    text = guide(model, processor)
    table = Table("question", "all tokens", f"{keep:.4g} of them", "right answer", "coverage")
    panels: list[tuple[Sample, Selection]] = []
    whole_ms, pruned_ms = [], []
    for sample in samples("test", questions):
        inputs = build_inputs(processor, [sample.image], [sample.question])
        whole = generate_answer(model, processor, inputs)
        with attach(model, processor, keep=keep, guide=text) as pruned:
            few = generate_answer(model, processor, inputs)
            selection = pruned.last[0]
        for _ in range(3):
            whole_ms.append(time_prefill(model, inputs))
            with attach(model, processor, keep=keep, guide=text):
                pruned_ms.append(time_prefill(model, inputs))
        panels.append((sample, selection))
        table.add_row(sample.question, whole, few, sample.answer, f"{selection.coverage:.1%}")
    console.print(table)
    sample, selection = panels[0]
    console.print(_words(selection.relevance))
    tokens, kept = selection.total, len(selection)
    first, second = statistics.median(whole_ms), statistics.median(pruned_ms)
    console.print(
        f"{tokens} visual tokens → {kept}. Prefill, everything included (vision tower, text guide, selection, language "
        f"model): {first:.1f} ms → {second:.1f} ms, ratio {second / first:.2f}."
    )
    console.print(
        "The pocket model is so small that there is little to save; `eadp` earns its keep on models with billions of "
        "parameters."
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    overlay(panels[:4]).save(out)
    console.print(f"picture: {out}")


def _words(relevance: Relevance | None) -> Table:
    """The first question's words, the ones that point first."""
    table = Table("word", "entropy", "kept", title="words of the first question, by entropy")
    if relevance is not None and relevance.words is not None:
        entropy, kept = relevance.word_entropy, relevance.word_kept
        for i in entropy.argsort().tolist():
            table.add_row(relevance.words[i], f"{entropy[i]:.2f}", "yes" if kept[i] else "")
    return table


def overlay(panels: list[tuple[Sample, Selection]]) -> Image.Image:
    """One row a question: the scene, its relevance map, and the kept tokens lit."""
    side = panels[0][0].image.width * SCALE
    picture = Image.new("RGB", (3 * side + 2 * GAP, len(panels) * (side + CAPTION + GAP)), "white")
    pen = TextWriter(ImageDraw.Draw(picture), 15)
    for row, (sample, selection) in enumerate(panels):
        top = row * (side + CAPTION + GAP)
        pen.write(2, top + 18, f"{sample.question}   {len(selection)} of {selection.total} tokens")
        comparison = build_comparison(selection, sample.image, None, sample.question)
        result = comparison.results[0]
        heat = selection.mask.float() if result.heatmap is None else result.heatmap
        shown = (
            draw_image_panel(comparison, side),
            draw_heatmap_panel(comparison, heat, side),
            draw_kept_panel(comparison, result, side),
        )
        for column, panel in enumerate(shown):
            picture.paste(panel, (column * (side + GAP), top + CAPTION))
    return picture
