"""Show what EADP over time does on staged clips, and measure what it costs beside other ways to prune a clip.

The staged clips are drawn in the pocket world and encoded by the pocket model. The costs are measured on clips of
random tokens whose frames drift, with the sizes of real models.

    python benchmarks/staged_clips.py              # about two minutes on one core
    python benchmarks/staged_clips.py --cases 0    # only the first of the cases of `COST_CASES`
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
import typer
from rich.console import Console

from eadp import EADP, Selection, TextGuide, VisualTokens, attach, get_method
from eadp.core.boxes import cells_in_boxes
from eadp.models.prompt import build_inputs
from eadp.pocket import guide, load
from eadp.pocket.world import render_image
from eadp.pocket.world.staged import StagedClip, staged_clips
from eadp.utils.palette import BLUE, GREEN, VERMILLION
from eadp.utils.tables import format_markdown

KEEP = 128
METHODS: dict[str, Any] = {
    "frame by frame": EADP(keep=KEEP),
    "time=2": EADP(keep=KEEP, time=2),
    "time=4": EADP(keep=KEEP, time=4),
    "floc": get_method("floc", keep=KEEP),
    "vidcom2": get_method("vidcom2", keep=KEEP, exact=True),
}
DRAWN = {"frame by frame": VERMILLION, "time=2": BLUE, "vidcom2": GREEN}
"""The methods of the figure, and their colours."""

COST_CASES = [(64, (13, 13), 2048, 896), (64, (13, 13), 2048, 3584), (256, (14, 14), 4096, 896)]
"""Frames, grid of a frame, tokens to keep, and width."""

DENSE_LIMIT = 64 * 169 * 896
"""FLoC's dense form is measured up to this many values in the clip."""


@dataclass(frozen=True)
class _Recorder(EADP):
    """EADP that also records what it was given."""

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        RECORDED.append((tokens, text))
        return super().select(tokens, text)


RECORDED: list[tuple[VisualTokens, TextGuide | None]] = []


def encode(clips: list[StagedClip]) -> list[tuple[VisualTokens, TextGuide | None]]:
    """Encode the frames of each clip by the pocket model, and its question."""
    model, processor = load()
    encoded = []
    for clip in clips:
        RECORDED.clear()
        with attach(model, processor, method=_Recorder(keep=1), guide=guide(model, processor)):
            for scene in clip.frames:
                model(**build_inputs(processor, [render_image(scene)], [clip.question]), logits_to_keep=1)
        frames = [tokens for tokens, _ in RECORDED]
        features, aligned = (torch.cat([getattr(each, name) for each in frames]) for name in ("features", "aligned"))
        grids = [each.grids[0] for each in frames]
        encoded.append((VisualTokens(features, aligned, grids, is_clip=True), RECORDED[0][1]))
    return encoded


def describe(clip: StagedClip, selection: Selection, grid: tuple[int, int]) -> list[str]:
    """Count different cells, frames with tokens, and tokens in the frames that answer and on the thing in question."""
    cells, quotas = grid[0] * grid[1], selection.quotas
    different = len(set((selection.indices % cells).tolist()))
    row = [str(different), str(sum(quota > 0 for quota in quotas))]
    if not clip.answering:
        return [*row, "–", "–"]
    on_thing = set()
    for frame in clip.answering:
        inside = cells_in_boxes(grid, [clip.frames[frame].things[-1].box])
        first = frame * cells
        kept = selection.indices[(selection.indices >= first) & (selection.indices < first + cells)] - first
        on_thing |= set(kept[inside[kept]].tolist())
    return [*row, str(sum(quotas[frame] for frame in clip.answering)), str(len(on_thing))]


def show_staged_clips() -> tuple[str, dict[str, Any]]:
    """Select on the staged clips, draw the tokens by frame, and format a table."""
    clips = staged_clips()
    rows, results, quotas = [], {}, {}
    for clip, (tokens, text) in zip(clips, encode(clips), strict=True):
        for name, method in METHODS.items():
            selection = method.select(tokens, text)
            quotas[clip.name, name] = selection.quotas
            row = describe(clip, selection, tokens.grids[0])
            rows.append([clip.name, name, *row])
            results[f"{clip.name}, {name}"] = {"quotas": selection.quotas, "coverage": selection.coverage}
    draw_figure(clips, quotas)
    head = ["clip", "method", "different cells", "frames with tokens", "tokens in the answering frames", "cells on it"]
    return format_markdown(head, rows), results


def draw_figure(clips: list[StagedClip], quotas: dict[tuple[str, str], tuple[int, ...]]) -> None:
    """Draw docs/img/staged-clips.webp: three frames of each clip, and below them the tokens that each frame keeps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(clips), figsize=(14, 5), height_ratios=(1, 2), layout="constrained")
    for column, clip in enumerate(clips):
        count = len(clip.frames)
        shown = [0, clip.answering[1] if clip.answering else count // 2, count - 1]
        strip = np.concatenate([np.asarray(render_image(clip.frames[t])) for t in shown], axis=1)
        top, bottom = axes[0, column], axes[1, column]
        top.imshow(strip)
        top.set_title(f"{clip.name}: “{clip.question}”", fontsize=10)
        top.set_xlabel(f"frames {', '.join(str(t) for t in shown)}", fontsize=8)
        top.set(xticks=[], yticks=[])
        if clip.answering:
            bottom.axvspan(clip.answering[0] - 0.5, clip.answering[-1] + 0.5, color="0.9")
        for number, (name, colour) in enumerate(DRAWN.items()):
            places = [t + 0.27 * (number - 1) for t in range(count)]
            bottom.bar(places, quotas[clip.name, name], width=0.27, color=colour, label=name)
        bottom.set(xticks=range(0, count, 3), xlabel="frame", ylabel="tokens kept" if column == 0 else "")
    figure.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(common.IMAGES / "staged-clips.webp", dpi=110)


def drifting_clip(frames: int, grid: tuple[int, int], width: int) -> VisualTokens:
    """Make a clip of tokens that resemble an image's and drift from one image to another."""
    first, last = (common.image_like(*grid, width, seed) for seed in (0, 1))
    g = torch.Generator().manual_seed(2)
    shares = torch.linspace(0, 1, frames)
    features = torch.cat([(1 - s) * first + s * last + torch.randn(first.shape, generator=g) for s in shares.tolist()])
    aligned = torch.randn(len(features), 768, generator=g)
    return VisualTokens(features, aligned, [grid] * frames, is_clip=True)


def make_calls(frames: int, grid: tuple[int, int], keep: int, width: int) -> dict[str, Callable[[], Selection]]:
    """Build one call per method, all on one clip."""
    tokens = drifting_clip(frames, grid, width)
    words = torch.randn(20, 768, generator=torch.Generator().manual_seed(3))
    text = TextGuide(words, words.mean(0))
    methods: dict[str, Any] = {
        "frame by frame": EADP(keep=keep),
        "time=1": EADP(keep=keep, time=1),
        "time=2": EADP(keep=keep, time=2),
        "time=4": EADP(keep=keep, time=4),
        "vidcom2": get_method("vidcom2", keep=keep, exact=True),
    }
    if tokens.features.numel() <= DENSE_LIMIT:
        methods["floc"] = get_method("floc", keep=keep)
    return {name: lambda method=method: method.select(tokens, text) for name, method in methods.items()}


def peak_megabytes(call: Callable[[], Selection]) -> float:
    """Measure by how much a call raises the resident memory of a process, in a child with the same tokens."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            # What earlier calls freed goes back to the system; otherwise the call could use it and raise nothing.
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # sets the largest size to the present one
            before = _largest_size()
            call()
            os.write(writer, str(_largest_size() - before).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    if not found:
        raise RuntimeError("the child process could not measure its memory, which needs Linux and its /proc")
    return int(found) * 1024 / 1e6


def _largest_size() -> int:
    """Return the largest resident size of this process so far, in kilobytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def compile_loops(names: Iterable[str]) -> None:
    """Run all methods on a small clip, so that compiling their loops is neither timed nor counted."""
    calls = make_calls(4, (4, 4), 16, 32)
    for name in names:
        calls[name]()


def measure_costs(cases: list[int], repeats: int) -> tuple[str, list[dict[str, Any]]]:
    """Time all methods in turns, after their memory was measured."""
    rows, results = [], []
    for case in cases:
        frames, grid, keep, width = COST_CASES[case]
        calls = make_calls(frames, grid, keep, width)
        compile_loops(calls)
        memory = {name: peak_megabytes(call) for name, call in calls.items()}
        times = common.medians(common.time_interleaved(calls, repeats))
        for name in calls:
            ratio = times[name] / times["frame by frame"]
            clip = f"{frames}×{grid[0] * grid[1]}, {width}"
            rows.append([clip, str(keep), name, f"{times[name]:.0f}", f"{ratio:.2f}×", f"{memory[name]:.0f}"])
            results.append({"case": COST_CASES[case], "method": name, "ms": times[name], "megabytes": memory[name]})
    head = ["tokens, width", "K", "method", "ms", "/ frame by frame", "peak MB"]
    return format_markdown(head, rows), results


@torch.inference_mode()
def main(repeats: int = 5, cases: str = "0,1,2") -> None:
    """Select, measure, print, and write benchmarks/results/staged_clips.json, docs/methods/time.md and its figure."""
    common.use_one_thread()
    page = common.ROOT / "docs" / "methods" / "time.md"
    staged, quotas = show_staged_clips()
    common.write_into(page, "staged", f"{KEEP} of 16×256 tokens stay.\n\n{staged}")
    Console(width=160).print(staged)
    costs, results = measure_costs([int(case) for case in cases.split(",")], repeats)
    note = "CPU time of the whole of `select` on one thread of a shared machine; timed rounds, after a first one:"
    common.write_into(page, "costs", f"{note} {repeats}.\n\n{costs}")
    Console(width=160).print(costs)
    path = common.save("staged_clips", {"staged": quotas, "costs": results})
    print(f"written: {path.relative_to(common.ROOT)}, {page.relative_to(common.ROOT)}, docs/img/staged-clips.webp")


if __name__ == "__main__":
    typer.run(main)
