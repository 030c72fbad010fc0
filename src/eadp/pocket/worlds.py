"""Which world a model knows: `smol` and `things` the world of things, the pocket model that of shapes."""

from __future__ import annotations

from collections.abc import Iterator

from eadp.pocket import samples as shapes
from eadp.pocket import things
from eadp.pocket.names import SMOL, THINGS
from eadp.pocket.samples import Sample
from eadp.pocket.things import Split


def world_of(model: str) -> str:
    """Return the name of the world from which a model is asked: "things" or "shapes"."""
    return "things" if model in (SMOL, THINGS) else "shapes"


def samples_for(model: str, split: Split, total: int) -> Iterator[Sample]:
    """Generate questions of a split of the world that a model knows, always the same ones."""
    return things.samples(split, total) if world_of(model) == "things" else shapes.samples(split, total)
