"""`eadp demo`: a model that runs offline answers questions about a drawn scene, with all visual tokens and with few."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from eadp.core import Relevance
from eadp.models.prompt import build_inputs
from eadp.pocket import guide, load
from eadp.pocket.names import SMOL, THINGS
from eadp.pocket.things.samples import scene_samples
from eadp.runtime import attach
from eadp.view.comparer import generate_answer, time_prefill
from eadp.view.questions_figure import AskedQuestion, draw_questions
from eadp.view.selection import build_comparison

SCENE, KINDS = 11, ("reading", "nearest", "between", "group", "several")
"""The number of the test scene, and the kinds of the questions about it, which take turns."""

KEEP = 64

INTRODUCTIONS = {
    THINGS: "The model things: a small LLaVA that ships with the package and knows scenes of everyday things.",
    SMOL: "The model smol: SmolLM2-135M-Instruct with a small vision tower that knows scenes of everyday things.",
}
REMARKS = {
    THINGS: "This model is small, so there is little to save; pruning pays off on larger ones, such as smol.",
    SMOL: "smol is a toy, and some answers are wrong with all tokens as well; the times are those of a real language "
    "model of 135 million parameters.",
}


@torch.inference_mode()
def run(keep: int | float, questions: int, out: Path, name: str | None = None) -> None:
    """Ask questions, print both answers and the times, and draw what was kept.

    Args:
        keep: Number or share of the visual tokens that stay.
        questions: Number of questions.
        out: The image file to write.
        name: The model: `smol` or `things`. None: `smol` if its weights are installed, or else `things`.

    Raises:
        FileNotFoundError: If the weights of SmolLM2 are not installed, and `smol` was asked for.
        ImportError: If the package that reads them is not installed, and `smol` was asked for.
    """
    console = Console()
    name, model, processor = _load(name, console)
    console.print(INTRODUCTIONS[name])
    text_guide = guide(model, processor)
    table = Table("question", "all tokens", f"{keep} of them", "right answer", "coverage")
    asked: list[AskedQuestion] = []
    unpruned_ms, pruned_ms = [], []
    for sample in scene_samples("test", SCENE, questions, KINDS, wrapped=0.0):
        inputs = build_inputs(processor, [sample.image], [sample.question])
        unpruned_answer = generate_answer(model, processor, inputs)
        with attach(model, processor, keep=keep, guide=text_guide) as pruned:
            answer = generate_answer(model, processor, inputs)
            selection = pruned.last[0]
            pruned_ms.append(time_prefill(model, inputs))
        unpruned_ms.append(time_prefill(model, inputs))
        asked.append(AskedQuestion(build_comparison(selection, sample.image, None, sample.question), answer))
        coverage = "" if selection.coverage is None else f"{selection.coverage:.1%}"
        table.add_row(sample.question, unpruned_answer, answer, sample.answer, coverage)
    console.print(table)
    console.print(_word_table(selection.relevance))
    before, after = statistics.median(unpruned_ms), statistics.median(pruned_ms)
    console.print(
        f"{selection.total} visual tokens → {len(selection)}. Prefill, all parts included (vision tower, text guide, "
        f"selection, language model): {before:.0f} ms → {after:.0f} ms, ratio {after / before:.2f}."
    )
    console.print(REMARKS[name])
    out.parent.mkdir(parents=True, exist_ok=True)
    draw_questions(asked).save(out)
    console.print(f"image: {out}")


def _load(name: str | None, console: Console) -> tuple[str, Any, Any]:
    if name is not None:
        return name, *load(name)
    try:
        return SMOL, *load(SMOL)
    except (FileNotFoundError, ImportError) as error:
        console.print(f"The model smol cannot be loaded, so a smaller one answers. {error}")
        return THINGS, *load(THINGS)


def _word_table(relevance: Relevance | None) -> Table:
    """Build a table of the last question's words, those with the lowest entropy first."""
    table = Table("word", "entropy", "kept", title="words of the last question, by entropy")
    if relevance is not None and relevance.words is not None:
        entropy, kept = relevance.word_entropy, relevance.word_kept
        for i in entropy.argsort().tolist():
            table.add_row(relevance.words[i], f"{entropy[i]:.2f}", "yes" if kept[i] else "")
    return table
