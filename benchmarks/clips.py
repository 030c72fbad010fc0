"""Draw what each method for clips keeps of one clip: docs/img/clip-NAME.webp, which `cards.py` puts into the cards.

    python benchmarks/clips.py

The clip is one of things, and the model is `clips`.
"""

from __future__ import annotations

import common
import torch
import typer
from PIL import Image

import eadp
from eadp.core import Selection, VisualTokens
from eadp.methods import get_method, get_method_class, list_methods
from eadp.methods.floc import FLoC
from eadp.methods.video import VideoMethod
from eadp.models.prompt import build_clip_inputs
from eadp.pocket.names import CLIPS
from eadp.pocket.things import clip_samples
from eadp.view.panels import draw_image_panel, draw_kept_panel
from eadp.view.selection import build_comparison

METHODS = [name for name in list_methods() if issubclass(get_method_class(name), (VideoMethod, FLoC))]
KEEP, WIDTH = 0.25, 1100


def main() -> None:
    """Draw docs/img/clip-NAME.webp of each video method."""
    model, processor = eadp.load_pocket(CLIPS)
    (clip,) = clip_samples("test", 1)
    inputs = build_clip_inputs(model, processor, clip.frames, clip.question)
    for name in METHODS:
        # The last layer of the tower is the identity, so its attention means nothing.
        own = {"layer": -2} if "layer" in get_method_class(name).default_settings() else {}
        with eadp.attach(model, processor, method=get_method(name, keep=KEEP, **own)) as pruned:
            model(**inputs)
        kept = join(pruned.last)
        comparison = build_comparison(kept, list(clip.frames), joined_grids(pruned), clip.question)
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


if __name__ == "__main__":
    typer.run(main)
