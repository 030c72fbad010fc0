"""The pocket model asked about drawn scenes, with all visual tokens and with few: what `eadp demo` shows."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from rich.console import Console
from rich.table import Table
from torch import Tensor

from eadp.core import Relevance, Selection
from eadp.pocket import guide, load
from eadp.pocket.samples import Sample, samples
from eadp.runtime import attach

SCALE = 2
"""Pixels of the picture for each pixel of a scene."""

GAP, CAPTION = 12, 22
LOW, HIGH = torch.tensor([68.0, 1, 84]), torch.tensor([253.0, 231, 37])
"""The ends of the map's colours; dark to light, so that it reads without colour too."""


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
        inputs = processor(images=sample.image, text=sample.prompt, return_tensors="pt")
        whole = _answer(model, processor, inputs)
        with attach(model, processor, keep=keep, guide=text) as pruned:
            few = _answer(model, processor, inputs)
            selection = pruned.last[0]
        for _ in range(3):
            whole_ms.append(_prefill_ms(model, inputs))
            with attach(model, processor, keep=keep, guide=text):
                pruned_ms.append(_prefill_ms(model, inputs))
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


def _answer(model: Any, processor: Any, inputs: Any) -> str:
    out = model.generate(**inputs, do_sample=False)
    return processor.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()


def _prefill_ms(model: Any, inputs: Any) -> float:
    start = time.perf_counter()
    model(**inputs, logits_to_keep=1)
    return 1000 * (time.perf_counter() - start)


def _words(relevance: Relevance | None) -> Table:
    """The first question's words, the ones that point first."""
    table = Table("word", "entropy", "kept", title="words of the first question, by entropy")
    if relevance is not None and relevance.words is not None:
        for i in relevance.entropy.argsort().tolist():
            table.add_row(relevance.words[i], f"{relevance.entropy[i]:.2f}", "yes" if relevance.kept[i] else "")
    return table


def overlay(panels: list[tuple[Sample, Selection]]) -> Image.Image:
    """One row a question: the scene, its relevance map, and the kept tokens lit."""
    side = panels[0][0].image.width * SCALE
    picture = Image.new("RGB", (3 * side + 2 * GAP, len(panels) * (side + CAPTION + GAP)), "white")
    draw = ImageDraw.Draw(picture)
    for row, (sample, selection) in enumerate(panels):
        top = row * (side + CAPTION + GAP)
        draw.text((4, top + 4), f"{sample.question}   {len(selection)} of {selection.total} tokens", fill="black")
        scene = sample.image.resize((side, side), Image.Resampling.LANCZOS)
        relevance = selection.relevance
        heat = selection.mask.float() if relevance is None or relevance.smoothed is None else relevance.smoothed
        lit = _grown(selection.mask, side).point(lambda value: 255 if value else 60)
        kept = Image.composite(scene, Image.new("RGB", scene.size), lit)
        for column, panel in enumerate((scene, _coloured(heat, side), kept)):
            picture.paste(panel, (column * (side + GAP), top + CAPTION))
    return picture


def _grid(values: Tensor) -> Tensor:
    side = round(len(values) ** 0.5)
    return values.view(side, side)


def _grown(mask: Tensor, side: int) -> Image.Image:
    return Image.fromarray((_grid(mask) * 255).to(torch.uint8).numpy()).resize((side, side), Image.Resampling.NEAREST)


def _coloured(values: Tensor, side: int) -> Image.Image:
    level = _grid(values)[..., None]
    colours = (LOW + (HIGH - LOW) * level / level.max().clamp_min(1e-9)).to(torch.uint8)
    return Image.fromarray(colours.numpy()).resize((side, side), Image.Resampling.NEAREST)
