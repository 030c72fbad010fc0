"""One selection, shown without a model: as a figure, and as a page."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from eadp.core import Selection
from eadp.core.types import OnGrids
from eadp.view.comparison import Comparison, MethodResult
from eadp.view.figure import draw_figure
from eadp.view.report import render_report


def plot(
    selection: Selection,
    image: Image.Image | Sequence[Image.Image],
    tokens: OnGrids | None = None,
    question: str = "",
) -> Image.Image:
    """Draw a selection: the words of the question, the relevance map, and the kept tokens. Notebooks show the result.

    Args:
        selection: What a method kept, such as `pruned.last[0]`.
        image: The image, or the frames of the clip, that the tokens lie on.
        tokens: How the tokens lie on it: one of `pruned.images`, or the `VisualTokens`. By default one square grid.
        question: The question; by default the words that the guide read.

    Raises:
        ValueError: If there is no image, or if the grids do not hold the tokens of the selection.
    """
    return draw_figure(comparison_of(selection, image, tokens, question))


def to_html(
    selection: Selection,
    image: Image.Image | Sequence[Image.Image],
    tokens: OnGrids | None = None,
    question: str = "",
) -> str:
    """Write a selection as one self-contained HTML page.

    Args:
        selection: What a method kept, such as `pruned.last[0]`.
        image: The image, or the frames of the clip, that the tokens lie on.
        tokens: As in `plot`. With `VisualTokens` the page also shows which token represents which.
        question: The question; by default the words that the guide read.

    Raises:
        ValueError: If there is no image, or if the grids do not hold the tokens of the selection.
    """
    return render_report(comparison_of(selection, image, tokens, question))


def comparison_of(
    selection: Selection, image: Image.Image | Sequence[Image.Image], tokens: OnGrids | None, question: str
) -> Comparison:
    """A comparison of one method, from its selection alone."""
    images = [image] if isinstance(image, Image.Image) else list(image)
    if not images:
        raise ValueError("give the image, or the frames of the clip, that the tokens lie on")
    if tokens is None:
        side = round(selection.total**0.5)
        if side**2 != selection.total:
            raise ValueError(
                f"{selection.total} tokens are no square: say how they lie with `tokens`, such as pruned.images[0]"
            )
        grids, layout, features = [(side, side)], None, None
    else:
        grids, layout, features = list(tokens.grids), tokens.layout, getattr(tokens, "features", None)
    return Comparison(
        images=[each.convert("RGB") for each in images],
        question=question or " ".join(selection.words or ()),
        grids=grids,
        results=[MethodResult(selection)],
        layout=layout,
        features=features,
        relevance=selection.relevance,
        notes=selection.notes,
    )
