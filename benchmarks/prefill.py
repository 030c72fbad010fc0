"""Measure what pruning saves of a prefill: EADP at three budgets, CDPruner, DivPrune and the published EADP loop.

The model has a real architecture and random weights, so nothing is downloaded. All rows take turns in one run, in CPU
time on one thread: see benchmarks/README.md.

    python benchmarks/prefill.py                                  # LLaVA-OneVision-0.5B, 1,458 visual tokens
    python benchmarks/prefill.py --layers 6                       # a quarter of its layers
    python benchmarks/prefill.py --model random:tiny-llava --rounds 2   # a quick check
"""

from __future__ import annotations

from statistics import median
from typing import Any

import common
import typer
from rich.console import Console
from rich.progress import Progress
from selection import TARGET_HEAD

from eadp.architectures import untrained
from eadp.loading import load_guide, load_model
from eadp.measure import bench_report
from eadp.measure.bench import BenchReport, bench
from eadp.measure.bench_plot import draw_plot
from eadp.measure.loops import PublishedLoop
from eadp.measure.samples import pocket_samples
from eadp.measure.stopwatch import make_clock
from eadp.methods import Method, get_method
from eadp.models.prompt import build_inputs
from eadp.utils.images import make_square
from eadp.utils.tables import format_markdown

MIN_REALIZED_SPEEDUP, MAX_PRUNER_SHARE = 0.85, 0.05
"""The targets of this benchmark."""


def measure(name: str, side: int | None, layers: int | None, rounds: int) -> tuple[BenchReport, int]:
    """Measure all rows. Returns the report and the budget of a ninth of the tokens."""
    model, processor = load_model(name, layers=layers)
    side = side or untrained.image_side(model.config)
    inputs = [
        build_inputs(processor, [make_square(sample.load_image(), side)], [sample.question])
        for sample in pocket_samples(rounds)
    ]
    tokens = count_visual_tokens(model, side)
    keeps = [tokens // share for share in (4, 9, 18)]
    methods: list[Method] = [get_method("eadp", keep=keep) for keep in keeps]
    methods += [get_method(other, keep=keeps[1]) for other in ("cdpruner", "divprune")] + [PublishedLoop(keep=keeps[1])]
    with Progress() as progress:
        task = progress.add_task(name, total=len(inputs) * (1 + len(methods)))
        report = bench(
            name,
            model,
            processor,
            methods,
            inputs,
            clock=make_clock("cpu", model.device),
            guide=load_guide(name, model, processor),
            new_tokens=1,
            warmup=0,  # Counting operations on the first sample warms everything up.
            progress=lambda: progress.advance(task),
        )
    return report, keeps[1]


def count_visual_tokens(model: Any, side: int) -> int:
    """Count the visual tokens of a square image: its crops and, if the family uses crops, the whole image."""
    vision = model.config.vision_config
    if hasattr(vision, "spatial_merge_size"):
        return (side // (vision.spatial_merge_size * vision.patch_size)) ** 2
    patches = (vision.image_size // vision.patch_size) ** 2
    return patches if model.config.model_type == "llava" else patches * (1 + (side // vision.image_size) ** 2)


def compare_with_targets(report: BenchReport, ninth: int) -> list[list[str]]:
    """Format each target, and the value that this run reached."""
    found = []
    for result in report.results:
        if result.row.name != "eadp":
            continue
        if result.row.keep == ninth:
            figure = f"{result.row}: speed-up of the prefill, as a share of what the multiply-adds promise"
            found.append([figure, f"≥ {MIN_REALIZED_SPEEDUP:.0%}", f"{report.realized_speedup(result):.1%}"])
        shares = result.values("pruner_share")
        without_guide = median(1 - run.parts["text guide"] / run.prefill / run.pruner_share for run in result.runs)
        value = f"{median(shares):.1%} ({max(shares):.1%}), without the text guide {without_guide * median(shares):.1%}"
        figure = f"{result.row}: share of the prefill spent on pruning (highest round)"
        found.append([figure, f"≤ {MAX_PRUNER_SHARE:.0%}", value])
    return found


def main(
    model: str = "random:llava-onevision-0.5b", side: int = 384, layers: int | None = None, rounds: int = 3
) -> None:
    """Measure, print, and write benchmarks/results/prefill.json, docs/guides/measure.md and docs/img/prefill.png."""
    common.use_one_thread()
    report, ninth = measure(model, side if "onevision" in model else None, layers, rounds)
    console = Console(width=140)
    for table in bench_report.as_tables(report):
        console.print(table)
    reached = compare_with_targets(report, ninth)
    console.print(format_markdown(TARGET_HEAD, reached))
    if model != "random:llava-onevision-0.5b":
        return
    path = common.save("prefill", {**bench_report.as_json(report), "layers": layers, "targets": reached})
    draw_plot(report, common.IMAGES / "prefill.png")
    common.write_into(common.ROOT / "docs" / "guides" / "measure.md", "prefill", format_page(report, layers, reached))
    console.print(f"written: {path.relative_to(common.ROOT)}, docs/guides/measure.md, docs/img/prefill.png")


def format_page(report: BenchReport, layers: int | None, reached: list[list[str]]) -> str:
    """Format the section of docs/guides/measure.md."""
    size = (
        f"{layers} layers of the language model (tower and text encoder in proportion)" if layers else "all its layers"
    )
    about = (
        f"`python benchmarks/prefill.py`: {report.model} with {size}, {len(report.baseline.runs)} rounds, CPU time on "
        "one thread of a shared machine. "
        "Nearly all of the pruner's share is SigLIP's text encoder, which is always padded to 64 tokens."
    )
    image = "![Prefill time by part, per method and budget, relative to the unpruned model](../img/prefill.png)"
    tables = [format_markdown(*table(report)) for table in (bench_report.time_ratios, bench_report.count_ratios)]
    return "\n\n".join([about, image, *tables, format_markdown(TARGET_HEAD, reached)])


if __name__ == "__main__":
    typer.run(main)
