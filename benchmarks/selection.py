"""Measure the speed of facility location: ours, our version of the published loop, apricot and submodlib.

Every solver gets the same similarity matrix and weights and must return the same tokens. They take turns within one
run, in CPU time on one thread. The results are medians and their ratios.

    python benchmarks/selection.py            # everything, about 5 minutes
    python benchmarks/selection.py --quick    # the small sizes
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import common
import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from eadp import EADP, TextGuide, VisualTokens, core
from eadp.measure.gpu import image_like
from eadp.measure.loops import published_loop
from eadp.utils.palette import BLUE, GREEN, PURPLE, SKY_BLUE, VERMILLION
from eadp.utils.tables import format_markdown

OURS, LOOP, APRICOT, SUBMODLIB, TORCH = "eadp", "published loop", "apricot", "submodlib", "eadp (torch)"
COLOURS = {OURS: BLUE, TORCH: SKY_BLUE, LOOP: VERMILLION, APRICOT: GREEN, SUBMODLIB: PURPLE}
CASES = [  # Number of blocks, grid of a block.
    (1, (24, 24)),
    (1, (32, 32)),
    (5, (24, 24)),
    (64, (13, 13)),
    (1, (104, 104)),
]
SHARES = (18, 9, 4, 2)
"""A case keeps N divided by one of these."""

LOOP_PICKS = 4
"""At N = 10,816 the published loop would take 15 minutes. It makes only this many picks, and its time is scaled."""

TARGET_HEAD = ["figure", "target", "reached"]
"""Column titles of a table of targets."""


def peers(similarity: Tensor, weights: Tensor, keep: int) -> dict[str, Callable[[], object]]:
    """Build calls of the other libraries.

    They do not support weights, so the matrix contains them: Σ_j w_j·max_i S_ij = Σ_j max_i (w_j·S_ij).
    """
    import apricot.functions.facilityLocation as apricot_source
    from apricot import FacilityLocationSelection
    from submodlib import FacilityLocationFunction

    # apricot compiles its functions in every fit, for seconds: cache them, so that only its work is timed.
    for name in ("calculate_gains", "calculate_gains_sieve"):
        if not hasattr(factory := getattr(apricot_source, name), "cache_info"):
            setattr(apricot_source, name, cache(factory))

    weighted = (similarity.double() * weights.double()).numpy()
    function = FacilityLocationFunction(
        n=len(weighted), mode="dense", separate_rep=True, n_rep=len(weighted), sijs=weighted.T.copy()
    )

    def apricot() -> list[int]:
        return FacilityLocationSelection(keep, metric="precomputed").fit(weighted).ranking.tolist()

    def submodlib() -> list[int]:
        quiet = {"stopIfZeroGain": False, "stopIfNegativeGain": False, "show_progress": False}
        return [i for i, _ in function.maximize(budget=keep, optimizer="LazyGreedy", **quiet)]

    return {APRICOT: apricot, SUBMODLIB: submodlib}


def measure(blocks: int, grid: core.Grid, share: int, repeats: int) -> dict[str, Any]:
    """Time all solvers on one case, after a check that they pick the same tokens."""
    n = grid[0] * grid[1]
    keep = 600 if n > 4096 and share == 18 else n // share
    problems = []
    for block in range(blocks):
        weights = torch.rand(n, generator=torch.Generator().manual_seed(block)) ** 2
        problems.append((core.token_similarity(image_like(*grid, 64, block)), weights))
    loop_keep = min(keep, LOOP_PICKS) if n > 4096 else keep
    calls: dict[str, Callable[[], object]] = {
        OURS: lambda: [core.facility_location(s, w, keep, symmetric=True) for s, w in problems],
        LOOP: lambda: [published_loop(s, w, loop_keep) for s, w in problems],
    }
    if n <= 4096:
        calls[TORCH] = lambda: [core.facility_location(s, w, keep, backend="torch") for s, w in problems]
    if blocks == 1 and n <= 4096:
        calls |= peers(*problems[0], keep)
        expected = core.facility_location(*problems[0], keep).indices.tolist()
        for name, call in calls.items():
            answer = call()
            if name in (APRICOT, SUBMODLIB) and answer != expected:
                raise SystemExit(f"{name} picked other tokens at N={n}, K={keep}: it did not solve the same problem")
    times = common.medians(common.time_interleaved(calls, repeats))
    times[LOOP] *= keep / loop_keep
    return {"blocks": blocks, "n": n, "k": keep, "ms": times, "loop_scaled": loop_keep != keep}


def compare_with_targets(repeats: int) -> list[tuple[str, str, float]]:
    """Measure the figure of each target: its name, the target, and the value that this run reached."""

    def measure_1024(k: int) -> dict[str, float]:
        s = core.token_similarity(image_like(32, 32, 64))
        w = torch.rand(1024, generator=torch.Generator().manual_seed(0)) ** 2
        calls = {
            OURS: lambda: core.facility_location(s, w, k, symmetric=True),
            LOOP: lambda: published_loop(s, w, k),
            **peers(s, w, k),
        }
        return common.medians(common.time_interleaved(calls, repeats))

    found: list[tuple[str, str, float]] = []
    for k, target in ((128, "≥ 40"), (512, "≥ 100")):
        ms = measure_1024(k)
        found.append((f"N=1024 K={k}: published loop / ours", target, ms[LOOP] / ms[OURS]))
        found.append((f"N=1024 K={k}: fastest peer / ours", "≥ 15", min(ms[APRICOT], ms[SUBMODLIB]) / ms[OURS]))

    f = image_like(32, 32, 1024)
    s, w = core.token_similarity(f), torch.rand(1024) ** 2
    ms = common.medians(
        common.time_interleaved(
            {"select": lambda: core.facility_location(s, w, 128, symmetric=True), "matmul": lambda: f @ f.T},
            2 * repeats,
        )
    )
    found.append(("N=1024 d=1024 K=128: selection / similarity matmul", "≤ 0.25", ms["select"] / ms["matmul"]))

    g = torch.Generator().manual_seed(1)
    tokens = VisualTokens(image_like(24, 24, 4096), torch.randn(576, 768, generator=g), [(24, 24)])
    words = torch.randn(30, 768, generator=g)
    text, method = TextGuide(words, words.mean(0)), EADP(keep=64)
    calls = {"select": lambda: method.select(tokens, text), "matmul": lambda: tokens.features @ tokens.features.T}
    ms = common.medians(common.time_interleaved(calls, 2 * repeats))
    found.append(("N=576 d=4096 M=30 K=64: all of EADP.select / matmul", "≤ 1.5", ms["select"] / ms["matmul"]))

    seconds, gigabytes = (float(x) for x in subprocess.check_output([sys.executable, __file__, "--large"]).split())
    found.append(("N=10816 K=600: seconds of CPU time", "< 2", seconds))
    found.append(("N=10816 K=600: peak GB of the whole process", "< 1.5", gigabytes))
    return found


def measure_large() -> None:
    """Print the CPU seconds of one selection at N=10,816, K=600, and the peak memory of this process in GB."""
    s, w = core.token_similarity(image_like(104, 104, 64)), torch.rand(104 * 104) ** 2
    core.facility_location(s[:64, :64].contiguous(), w[:64], 8)  # Compile, or load from numba's cache.
    ms = common.time_interleaved({OURS: lambda: core.facility_location(s, w, 600, symmetric=True)}, 3)[OURS]
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(min(ms) / 1000, int(peak.split()[1]) * 1024 / 1e9)


def draw_plot(rows: list[dict[str, Any]]) -> None:
    """Draw the times of all solvers against K, as docs/img/selection.png and .svg."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    single = [row for row in rows if row["blocks"] == 1 and APRICOT in row["ms"]]
    sizes = sorted({row["n"] for row in single})
    figure, axes = plt.subplots(1, len(sizes), figsize=(4.6 * len(sizes), 3.6), sharey=True, layout="constrained")
    for axis, n in zip(axes, sizes, strict=True):
        cases = [row for row in single if row["n"] == n]
        for name in (LOOP, TORCH, APRICOT, SUBMODLIB, OURS):
            axis.plot(
                [row["k"] for row in cases],
                [row["ms"][name] for row in cases],
                marker="o",
                label=name,
                color=COLOURS[name],
                linewidth=2.5 if name == OURS else 1.5,
            )
        axis.set(xscale="log", yscale="log", title=f"N = {n} tokens", xlabel="K, tokens kept")
        axis.set_xticks([row["k"] for row in cases], [str(row["k"]) for row in cases])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("ms of CPU time, one thread")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    for kind in ("png", "svg"):
        figure.savefig(common.IMAGES / f"selection.{kind}", dpi=150)


def main(quick: bool = False, repeats: int = 7, large_only: bool = typer.Option(False, "--large", hidden=True)) -> None:
    """Measure, print, and write benchmarks/results/selection.json, docs/methods/selection.md and its figure."""
    common.use_one_thread()
    if large_only:
        return measure_large()
    cases = [(b, g, s) for b, g in CASES for s in SHARES if g[0] < 100 or s == 18]
    cases = [c for c in cases if not quick or (c[0] == 1 and c[1][0] < 100)]
    rows = [measure(*c, repeats if c[1][0] < 100 else 1) for c in track(cases, "measuring")]
    head = ["tokens", "K per block", "ours, ms", *(f"{name} / ours" for name in (LOOP, TORCH, APRICOT, SUBMODLIB))]
    body = [format_case(row) for row in rows]
    console = Console()
    console.print(as_table(head, body))
    if quick:
        return
    reached = compare_with_targets(repeats)
    summary = [[figure, target, f"{value:.2f}"] for figure, target, value in reached]
    console.print(as_table(TARGET_HEAD, summary))
    draw_plot(rows)
    path = common.save(
        "selection",
        {"cases": rows, "targets": [dict(zip(("figure", "target", "reached"), r, strict=True)) for r in reached]},
    )
    note = (
        "Medians of interleaved runs in CPU time, one thread of a shared machine; no GPU was measured. "
        "~: scaled up from a few picks."
    )
    text = "\n\n".join([note, format_markdown(head, body), format_markdown(TARGET_HEAD, summary)])
    page = common.ROOT / "docs" / "methods" / "selection.md"
    common.write_into(page, "selection", text)
    files = ", ".join(str(each.relative_to(common.ROOT)) for each in (path, page))
    console.print(f"written: {files}, docs/img/selection.png and .svg")


def format_case(row: dict[str, Any]) -> list[str]:
    """Format one case as ratios to our time."""
    ms = row["ms"]
    name = f"{row['blocks']}×{row['n']}" if row["blocks"] > 1 else str(row["n"])
    ratios = [f"{ms[peer] / ms[OURS]:.0f}×" if peer in ms else "–" for peer in (LOOP, TORCH, APRICOT, SUBMODLIB)]
    ratios[0] = "~" * row["loop_scaled"] + ratios[0]
    return [name, str(row["k"]), f"{ms[OURS]:.2f}", *ratios]


def as_table(head: list[str], rows: list[list[str]]) -> Table:
    """Build a table for the terminal."""
    table = Table(*head)
    for row in rows:
        table.add_row(*row)
    return table


if __name__ == "__main__":
    typer.run(main)
