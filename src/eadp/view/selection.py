"""Show one selection without a model, as a figure or as an HTML page."""

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
    """Draw a selection: the words of the question, the relevance map, and the kept tokens.

    Args:
        selection: What a method kept, such as `pruned.last[0]`.
        image: The image, or the frames of the clip, that the tokens lie on.
        tokens: The grids of the tokens: one of `pruned.images`, or the `VisualTokens`. By default one square grid.
        question: The question; by default the words that the guide encoded.

    Returns:
        The figure, which notebooks display.

    Raises:
        ValueError: If there is no image, or if the grids do not hold the tokens of the selection.
    """
    return draw_figure(build_comparison(selection, image, tokens, question))


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
        question: The question; by default the words that the guide encoded.

    Returns:
        The page as HTML.

    Raises:
        ValueError: If there is no image, or if the grids do not hold the tokens of the selection.
    """
    return render_report(build_comparison(selection, image, tokens, question))


def build_comparison(
    selection: Selection, image: Image.Image | Sequence[Image.Image], tokens: OnGrids | None, question: str
) -> Comparison:
    """Build a comparison of one method from its selection. The arguments are those of `plot`."""
    images = [image] if isinstance(image, Image.Image) else list(image)
    if not images:
        raise ValueError("give the image, or the frames of the clip, that the tokens lie on")
    if tokens is None:
        side = round(selection.total**0.5)
        if side**2 != selection.total:
            raise ValueError(
                f"{selection.total} tokens do not form a square: give their grids as tokens=, such as pruned.images[0]"
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
