"""Measure which share of a pruned prefill is EADP's own, on the layers of LLaVA-1.5-7B at 64 tokens.

    python benchmarks/share.py    # 4, 8 and 12 of 32 layers: needs 14 GB and four minutes of CPU time

Tower and text encoder are shortened in proportion to the language model; the selection is not. So the share falls with
the number of layers, and a line through the smallest and the largest number tells what it is in the whole model. CPU
time, one thread, medians; the question is new in every round. Written into docs/guides/measure.md.
"""

from __future__ import annotations

import gc
from statistics import median

import common
import torch
import typer
from rich.console import Console

from eadp.architectures import untrained
from eadp.loading import load_guide, load_model
from eadp.measure.bench import BenchRow, Runner
from eadp.measure.samples import pocket_samples
from eadp.measure.stopwatch import PARTS, PRUNER, make_clock, name_model_parts
from eadp.methods import EADP
from eadp.models.prompt import build_inputs
from eadp.utils.images import make_square
from eadp.utils.tables import format_markdown

ALL_LAYERS = 32


def measure(name: str, layers: int, keep: int, rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each part of a pruned prefill."""
    model, processor = load_model(name, layers=layers)
    side = untrained.image_side(model.config)
    runner = Runner(model, processor, load_guide(name, model, processor), make_clock("cpu", model.device), 1, "image")
    runs = []
    with torch.inference_mode(), name_model_parts(model):
        for sample in pocket_samples(rounds + 1):
            inputs = build_inputs(processor, [make_square(sample.load_image(), side)], [sample.question])
            runs.append(runner.run(BenchRow(EADP(keep=keep)), inputs.to(model.device, model.dtype)))
    return {part: median(run.parts[part] for run in runs[1:]) for part in PARTS}


def main(name: str = "random:llava-1.5-7b", keep: int = 64, rounds: int = 3) -> None:
    """Measure, print, and write the table into docs/guides/measure.md."""
    common.use_one_thread()
    found = {}
    for layers in (4, 8, 12):
        found[layers] = measure(name, layers, keep, rounds)
        gc.collect()
    few, *_, many = found
    found[ALL_LAYERS] = {
        part: found[few][part] + (ALL_LAYERS - few) * max(0.0, found[many][part] - found[few][part]) / (many - few)
        for part in PARTS
    }
    head = ["layers", *PARTS, "EADP's own share"]
    body = []
    for layers, parts in found.items():
        share = sum(parts[part] for part in PRUNER) / sum(parts.values())
        label = f"{layers} (estimate)" if layers == ALL_LAYERS else str(layers)
        body.append([label, *(f"{parts[part]:.0f}" if parts[part] >= 10 else f"{parts[part]:.1f}" for part in PARTS)])
        body[-1].append(f"{share:.2%}")
    Console(width=200).print(format_markdown(head, body))
    if name == "random:llava-1.5-7b":
        common.save("share", {"keep": keep, "rounds": rounds, "ms": found})
        common.write_into(common.ROOT / "docs" / "guides" / "measure.md", "share", format_markdown(head, body))


if __name__ == "__main__":
    typer.run(main)
