"""What the examples share: a real checkpoint, or with `--tiny` the tiny random model that the tests use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich import print

from eadp import Pruned
from eadp.loading import load_model

TESTS = Path(__file__).resolve().parents[1] / "tests"


def load(name: str, tiny_family: str | None) -> tuple[Any, Any, dict[str, Any]]:
    """Model, processor, and what `attach` needs besides: a tiny tower has no text encoder to load."""
    if tiny_family is None:
        return *load_model(name), {}
    from eadp.models.guides import EmbeddingGuide

    sys.path.insert(0, str(TESTS))
    from helpers import tiny

    model, processor = tiny.model(tiny_family), tiny.processor(tiny_family)
    return model, processor, {"guide": EmbeddingGuide(model.get_input_embeddings(), processor)}


def photo(path: str | None, size: tuple[int, int] = (60, 40)) -> Image.Image:
    """The picture at `path`, or noise."""
    if path:
        return Image.open(path).convert("RGB")
    noise = torch.rand(size[1], size[0], 3, generator=torch.Generator().manual_seed(0))
    return Image.fromarray((noise * 255).byte().numpy())


def report(pruned: Pruned, answer: str) -> None:
    for number, kept in enumerate(pruned.last):
        covered = "" if kept.coverage is None else f", which cover {kept.coverage:.0%} of what matters"
        print(f"image {number}: {len(kept)} of {kept.total} tokens{covered}")
        if kept.relevance is not None and kept.words is not None:
            pairs = zip(kept.words, kept.relevance.kept.tolist(), strict=True)
            print("words that point somewhere:", [word for word, stays in pairs if stays])
    print(f"answer: {answer!r}")
