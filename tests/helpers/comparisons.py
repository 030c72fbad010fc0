"""Synthetic comparisons: images, tokens, words and the selections of methods, without a model."""

from __future__ import annotations

import torch
from PIL import Image

from eadp import TextGuide, VisualTokens
from eadp.core import Grid, Layout
from eadp.methods import get_method
from eadp.view import Comparison, MethodResult

METHODS = ("eadp", "cdpruner", "topk")


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return a random image, which compresses badly and is bright enough to distinguish kept from dimmed cells."""
    pixels = torch.rand(height, width, 3, generator=torch.Generator().manual_seed(seed)) * 155 + 100
    return Image.fromarray(pixels.byte().numpy())


def tokens_on(grids: list[Grid], layout: Layout | None = None, seed: int = 0) -> VisualTokens:
    """Return random tokens whose neighbours are similar, as in real images."""
    generator = torch.Generator().manual_seed(seed)
    blocks = []
    for rows, columns in grids:
        coarse = torch.randn(1, 24, rows // 3 + 1, columns // 3 + 1, generator=generator)
        fine = torch.nn.functional.interpolate(coarse, size=(rows, columns), mode="bilinear")
        blocks.append((fine + 0.2 * torch.randn(fine.shape, generator=generator))[0].flatten(1).T)
    features = torch.cat(blocks)
    return VisualTokens(features, features[:, :12], grids, layout)


def comparison(
    grids: list[Grid],
    images: list[Image.Image],
    keep: int,
    *,
    question: str = "Where is the small red cat ?",
    methods: tuple[str, ...] = METHODS,
    layout: Layout | None = None,
) -> Comparison:
    """Return a comparison of methods on random tokens and random word vectors."""
    tokens, words = tokens_on(grids, layout), question.split()
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(len(words), 12, generator=generator)
    text = TextGuide(vectors, vectors.mean(0), words)
    results = [MethodResult(get_method(name, keep=keep).select(tokens, text)) for name in methods]
    relevance = get_method("eadp", keep=1.0).relevance(tokens, text)
    return Comparison(images, question, grids, results, layout, tokens.features, relevance)
