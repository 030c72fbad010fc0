"""Draw what each video method keeps of one clip, and measure how long it takes to select the tokens of a long one.

    python benchmarks/clips.py draw      # docs/img/clip-NAME.webp, for the cards
    python benchmarks/clips.py time      # benchmarks/results/clips.json, for the cards: 64 frames of 13×13 tokens

The figures show a clip of the pocket world, through the pocket model, whose frames share one budget. Times are CPU time
on one thread, medians of interleaved runs, as ratios to EADP, which prunes frame by frame. The attention of the tower
is not included.
"""

from __future__ import annotations

from functools import partial

import common
import torch
import typer
from PIL import Image

import eadp
from eadp.core import Selection, TextGuide, TowerAttention, VisualTokens
from eadp.methods import BeforeMethod, get_method, get_method_class, list_methods
from eadp.methods.floc import FLoC
from eadp.methods.video import VideoMethod
from eadp.models.prompt import build_clip_inputs
from eadp.pocket.world import make_clip, render_image
from eadp.view.panels import draw_image_panel, draw_kept_panel
from eadp.view.selection import build_comparison

METHODS = [name for name in list_methods() if issubclass(get_method_class(name), (VideoMethod, FLoC))]
KEEP, FRAMES, WIDTH = 0.25, 6, 900
LONG, GRID, CHANNELS, LONG_KEEP = 64, (13, 13), 3584, 2048
"""LLaVA-Video-7B: frames, tokens of a frame, width of the language model; tokens to keep."""
WORDS, SHARED = 30, 768

app = typer.Typer(add_completion=False)


@app.command()
def draw() -> None:
    """Draw docs/img/clip-NAME.webp of each video method."""
    model, processor = eadp.load_pocket()
    clip = make_clip("test", 0, frames=FRAMES)
    frames = [render_image(frame) for frame in clip.frames]
    inputs = build_clip_inputs(model, processor, frames, clip.question)
    for name in METHODS:
        # The last layer of the pocket tower is the identity, so its attention means nothing.
        own = {"layer": -2} if "layer" in get_method_class(name).default_settings() else {}
        with eadp.attach(model, processor, method=get_method(name, keep=KEEP, **own), budget_over="prompt") as pruned:
            model(**inputs)
        kept = join(pruned.last)
        comparison = build_comparison(kept, frames, joined_grids(pruned), clip.question)
        panels = [draw_image_panel(comparison, WIDTH), draw_kept_panel(comparison, comparison.results[0], WIDTH)]
        picture = Image.new("RGB", (WIDTH, sum(panel.height for panel in panels)), "white")
        picture.paste(panels[0], (0, 0))
        picture.paste(panels[1], (0, panels[0].height))
        path = common.IMAGES / f"clip-{name}.webp"
        picture.save(path, quality=85, method=6)
        print(f"{path.relative_to(common.ROOT)}: {kept.quotas}")


def join(parts: list[Selection]) -> Selection:
    """Join the selections of frames that share a budget."""
    total = sum(part.total for part in parts)
    starts = torch.tensor([0, *(part.total for part in parts)]).cumsum(0)
    kept = torch.cat([part.indices + start for part, start in zip(parts, starts, strict=False)])
    return Selection(kept, total, parts[0].method, quotas=tuple(len(part) for part in parts))


def joined_grids(pruned: eadp.Pruned) -> VisualTokens:
    """Return the grids of all frames, as `build_comparison` takes them."""
    grids = [grid for layout in pruned.images for grid in layout.grids]
    return VisualTokens(torch.zeros(sum(rows * columns for rows, columns in grids), 1), None, grids, is_clip=True)


@app.command()
def time(repeats: int = 3) -> None:
    """Measure the time of the selection, and write benchmarks/results/clips.json."""
    common.use_one_thread()
    tokens, text = long_clip()
    methods = [get_method(name, keep=LONG_KEEP) for name in ("eadp", *METHODS)]
    calls = {each.name: partial(each.select, tokens, text) for each in methods if isinstance(each, BeforeMethod)}
    ms = common.medians(common.time_interleaved(calls, repeats))
    for name, value in ms.items():
        print(f"{name}: {value:.0f} ms, {value / ms['eadp']:.2f} of eadp")
    case = {"frames": LONG, "grid": GRID, "k": LONG_KEEP, "ms": ms}
    print(f"written: {common.save('clips', {'cases': [case]}).relative_to(common.ROOT)}")


def long_clip() -> tuple[VisualTokens, TextGuide]:
    """Make a clip whose frames change slowly, with a cut in the middle, and a question."""
    n, g = GRID[0] * GRID[1], torch.Generator().manual_seed(1)
    scenes = [common.image_like(*GRID, CHANNELS, seed) for seed in (0, 1)]
    frames = [scenes[2 * frame // LONG] + torch.randn(n, CHANNELS, generator=g) for frame in range(LONG)]
    total = LONG * n
    aligned = torch.randn(total, SHARED, generator=g)
    layer = TowerAttention(0, 1, torch.zeros(total, 1, 1), received=torch.rand(total, generator=g) / total)
    words = torch.randn(WORDS, SHARED, generator=g)
    tokens = VisualTokens(torch.cat(frames), aligned, [GRID] * LONG, attention=[layer], is_clip=True)
    return tokens, TextGuide(words, words.mean(0))


if __name__ == "__main__":
    app()
