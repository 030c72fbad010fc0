"""Which world a model knows: `smol` and `things` that of things, the pocket model that of shapes, `photo` neither."""

from __future__ import annotations

from collections.abc import Iterator

from eadp.pocket import samples as shapes
from eadp.pocket import things
from eadp.pocket.names import PHOTO, SMOL, THINGS
from eadp.pocket.samples import Sample
from eadp.pocket.things import Split

PHOTOGRAPHS = "photographs"


def world_of(model: str) -> str:
    """Return the name of the world from which a model is asked: "things", "shapes" or "photographs"."""
    if model == PHOTO:
        return PHOTOGRAPHS
    return "things" if model in (SMOL, THINGS) else "shapes"


def samples_for(model: str, split: Split, total: int) -> Iterator[Sample]:
    """Generate questions of a split of the drawn world that a model knows, always the same ones.

    All other models get scenes of shapes, on which they can be timed.
    """
    return things.samples(split, total) if world_of(model) == "things" else shapes.samples(split, total)
