"""The core on a real photo, with a guide that is made up: what `eadp demo` shows."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens
from eadp.methods.eadp import EADP

SIDE, CELL = 24, 20
"""Tokens a side, pixels a token."""

QUESTION = ["what", "is", "on", "the", "badge", "?"]
BADGE = (slice(17, 20), slice(6, 10))
"""The cells of the photo that the word "badge" is made to point at."""


def photo() -> np.ndarray:
    """480×480×3, uint8: the astronaut that ships with scikit-image (NASA, public domain)."""
    try:
        from skimage import data
    except ImportError as missing:
        raise SystemExit("the demo needs a photo and a plot: pip install 'eadp[plot]'") from missing
    picture: np.ndarray = data.astronaut()[16:496, 16:496]
    return picture


def tokens_of(picture: np.ndarray) -> VisualTokens:
    """One token a 20×20 cell: its colours at 5×5 places, and where it lies. No model has a part in it."""
    cells = torch.from_numpy(picture.copy()).float().div(255).view(SIDE, CELL, SIDE, CELL, 3)
    colours = cells.view(SIDE, 5, 4, SIDE, 5, 4, 3).mean(dim=(2, 5)).permute(0, 2, 1, 3, 4).reshape(SIDE * SIDE, -1)
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
    place = torch.stack([y.flatten(), x.flatten()], dim=1)
    features = torch.cat([colours - colours.mean(0), 1.5 * place], dim=1)
    return VisualTokens(features=features, aligned=features, grids=[(SIDE, SIDE)])


def made_up_guide(tokens: VisualTokens) -> TextGuide:
    """A word that points (the mean of the cells it names) among words that point nowhere (near to no direction)."""
    named = tokens.features.view(SIDE, SIDE, -1)[BADGE].flatten(0, 1).mean(0)
    noise = torch.randn(len(QUESTION), len(named), generator=torch.Generator().manual_seed(0))
    away = torch.linalg.qr(tokens.features.T @ tokens.features).Q[:, -1]
    words = 5 * away + 0.5 * noise * named.norm() / len(named) ** 0.5
    words[QUESTION.index("badge")] = named
    return TextGuide(tokens=words, pooled=words.mean(0), words=QUESTION, sign=1.0)


def picture_of(image: np.ndarray, picked: Selection, path: Path) -> None:
    """Photo, relevance map and kept tokens, side by side."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    def grown(values: Tensor) -> np.ndarray:
        array: np.ndarray = values.view(SIDE, SIDE).numpy()
        return array.repeat(CELL, 0).repeat(CELL, 1)

    relevance = picked.relevance
    if relevance is None or relevance.smoothed is None:
        raise ValueError("there is nothing to draw: the selection has no relevance map")
    dimmed = image * np.where(grown(picked.mask), 1.0, 0.25)[..., None] / 255
    panels = [
        (image, f"{picked.total} tokens"),
        (grown(relevance.smoothed), "relevance to “badge”"),
        (dimmed, f"{len(picked)} kept, coverage {picked.coverage:.0%}"),
    ]
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.8), layout="constrained")
    for axis, (panel, title) in zip(axes, panels, strict=True):
        axis.imshow(panel, cmap="viridis")
        axis.set_title(title, fontsize=11)
        axis.axis("off")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def run(keep: int, out: Path) -> None:
    """Select, print the words by entropy, and write the picture."""
    console = Console()
    console.print(
        "The core of EADP on a real photo. The guide is made up: no model looked at the picture or the question."
    )
    image = photo()
    tokens = tokens_of(image)
    guide, method = made_up_guide(tokens), EADP(keep=keep, q=0.2)
    method.select(tokens, guide)  # compiled, or fetched from numba's cache
    start = time.process_time()
    picked = method.select(tokens, guide)
    took = time.process_time() - start
    relevance = picked.relevance
    if relevance is not None:
        table = Table("word", "entropy", "kept", title="words of the question")
        for i in relevance.entropy.argsort().tolist():
            table.add_row(QUESTION[i], f"{relevance.entropy[i]:.2f}", "yes" if relevance.kept[i] else "")
        console.print(table)
    console.print(f"{len(picked)} of {picked.total} tokens in {1000 * took:.1f} ms of CPU time.")
    console.print(
        f"They represent {picked.coverage:.1%} of the weighted image; no {len(picked)} tokens can represent more than "
        f"{picked.bound:.1%}."
    )
    picture_of(image, picked, out)
    console.print(f"picture: {out}")
