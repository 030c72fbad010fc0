"""Draw the picture of each method's card: one scene of the pocket world, and the tokens that the method keeps of it.

    python benchmarks/pictures.py               # all methods
    python benchmarks/pictures.py mmtok scope   # only these

The model is the pocket model. `cards.py` puts the pictures into the cards.
"""

from __future__ import annotations

from typing import Annotated

import common
import typer
from PIL import Image

from eadp.methods import get_method_class, list_methods
from eadp.pocket.samples import samples
from eadp.view.comparer import MethodComparer
from eadp.view.panels import draw_image_panel, draw_kept_panel

SCENE = 7
"""Index of the test question of the pocket benchmark that is shown, as in the gallery."""
KEEP = 32
PANEL, GAP = 280, 12
"""Width of a panel, and the space between the two, in pixels."""


def main(names: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Draw docs/img/method-NAME.webp for each method that takes a budget."""
    common.use_one_thread()
    known = [name for name in list_methods() if get_method_class(name).takes_budget]
    # `clips.py` draws those that are for clips.
    chosen = names or [name for name in known if not (common.IMAGES / f"clip-{name}.webp").is_file()]
    sample = list(samples("test", SCENE + 1))[SCENE]
    comparison = MethodComparer.from_name("pocket").compare([sample.image], sample.question, chosen, KEEP, rounds=1)
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
