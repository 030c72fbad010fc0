"""Photographs for the live page and the gallery: those that scikit-image ships, with their licences."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from PIL import Image

from eadp.utils.images import read_image


@dataclass(frozen=True)
class Photo:
    """A photograph with a question about it.

    Attributes:
        name: Name of the function in `skimage.data` that returns the photograph.
        question: A question about it.
        licence: Source and licence, as the docstring of that function states them.
        path: The file.
    """

    name: str
    question: str
    licence: str
    path: Path

    @property
    def image(self) -> Image.Image:
        return read_image(self.path)


SKIMAGE_PHOTOS = (
    ("astronaut", "astronaut.png", "Is there a flag?", "NASA, public domain"),
    ("chelsea", "chelsea.png", "Is there a cat?", "CC0 by Stefan van der Walt"),
    ("coffee", "coffee.png", "Is there a cup?", "CC0 by Rachel Michetti"),
    ("rocket", "rocket.jpg", "Is there a rocket?", "SpaceX, public domain"),
)


def list_photos() -> list[Photo]:
    """Return the photographs; an empty list if scikit-image (`pip install eadp[plot]`) is not installed."""
    spec = find_spec("skimage")
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parent / "data"
    return [Photo(name, question, licence, folder / file) for name, file, question, licence in SKIMAGE_PHOTOS]
