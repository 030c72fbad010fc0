"""`Selection.plot()` and `Selection.to_html()`: one selection, looked at where there is no model any more."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from eadp.core import Selection
from eadp.core.types import OnGrids
from eadp.view.exhibit import Exhibit, Take


def exhibit_of(
    selection: Selection, picture: Image.Image | Sequence[Image.Image], where: OnGrids | None, question: str
) -> Exhibit:
    """As `Selection.plot` says."""
    images = [picture] if isinstance(picture, Image.Image) else list(picture)
    if not images:
        raise ValueError("give the picture, or the frames of the clip, that the tokens lie on")
    if where is None:
        side = round(selection.total**0.5)
        if side**2 != selection.total:
            raise ValueError(
                f"{selection.total} tokens are no square: say how they lie with `where`, such as pruned.images[0]"
            )
        grids, layout, features = [(side, side)], None, None
    else:
        grids, layout, features = list(where.grids), where.layout, getattr(where, "features", None)
    return Exhibit(
        images=[image.convert("RGB") for image in images],
        question=question or " ".join(selection.words or ()),
        grids=grids,
        takes=[Take(selection)],
        layout=layout,
        features=features,
        relevance=selection.relevance,
        notes=selection.notes,
    )
