"""Photographs to look at: those that scikit-image ships, with their terms."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from PIL import Image

from eadp.utils.images import read_image


@dataclass(frozen=True)
class Photo:
    """terms: as the docstring of the function in `skimage.data` says."""

    name: str
    question: str
    terms: str
    path: Path

    @property
    def image(self) -> Image.Image:
        return read_image(self.path)


ALL = (
    ("astronaut", "astronaut.png", "Is there an orange thing?", "NASA, public domain"),
    ("chelsea", "chelsea.png", "What colour is the cat?", "CC0 by Stefan van der Walt"),
    ("coffee", "coffee.png", "Is there a red thing?", "CC0 by Rachel Michetti"),
    ("rocket", "rocket.jpg", "What is on the left?", "SpaceX, public domain"),
)


def photos() -> list[Photo]:
    """None where scikit-image (`pip install eadp[plot]`) is not installed."""
    spec = find_spec("skimage")
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parent / "data"
    return [Photo(name, question, terms, folder / file) for name, file, question, terms in ALL]
