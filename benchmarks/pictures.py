"""Draw the picture of each method's card: one scene of things, and the tokens that the method keeps of it.

    python benchmarks/pictures.py               # all methods
    python benchmarks/pictures.py mmtok scope   # only these

The model is `things`. `cards.py` puts the pictures into the cards.
"""

from __future__ import annotations

from typing import Annotated

import common
import typer
from PIL import Image

from eadp.methods import get_method_class, list_methods
from eadp.pocket.names import THINGS
from eadp.pocket.things import scene_samples
from eadp.view.comparer import MethodComparer
from eadp.view.panels import draw_image_panel, draw_kept_panel

SCENE, KIND = 11, "nearest"
"""The number of the test scene that is shown, as in `eadp demo`, and the kind of the question."""

KEEP = 64
PANEL, GAP = 280, 12
"""Width of a panel, and the space between the two, in pixels."""


def main(names: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Draw docs/img/method-NAME.webp for each method that takes a budget."""
    common.use_one_thread()
    known = [name for name in list_methods() if get_method_class(name).takes_budget]
    # `clips.py` draws those that are for clips.
    chosen = names or [name for name in known if not (common.IMAGES / f"clip-{name}.webp").is_file()]
    (sample,) = scene_samples("test", SCENE, 1, (KIND,), wrapped=0.0)
    comparison = MethodComparer.from_name(THINGS).compare([sample.image], sample.question, chosen, KEEP, rounds=1)
    scene = draw_image_panel(comparison, PANEL)
    for name, result in zip(chosen, comparison.results, strict=True):
        kept = draw_kept_panel(comparison, result, PANEL)
        picture = Image.new("RGB", (scene.width + GAP + kept.width, max(scene.height, kept.height)), "white")
        picture.paste(scene, (0, 0))
        picture.paste(kept, (scene.width + GAP, 0))
        picture.save(common.IMAGES / f"method-{name}.webp", quality=85, method=6)
    shown = {"question": sample.question, "keep": KEEP, "tokens": comparison.total}
    path = common.save("pictures", shown)
    print(f"drawn: {len(chosen)} methods on {sample.question!r}; written: {path.relative_to(common.ROOT)}")


if __name__ == "__main__":
    typer.run(main)
