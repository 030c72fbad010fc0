"""Which world a model knows: `pocket` that of shapes, `photo` photographs, the others things, `clips` in motion."""

from __future__ import annotations

from collections.abc import Iterator

from eadp.pocket import samples as shapes
from eadp.pocket import things
from eadp.pocket.names import CLIPS, PHOTO, SMOL, THINGS
from eadp.pocket.samples import Sample
from eadp.pocket.things import Split

PHOTOGRAPHS = "photographs"


def world_of(model: str) -> str:
    """Return the name of the world from which a model is asked: "things", "clips", "shapes" or "photographs"."""
    return {THINGS: "things", SMOL: "things", CLIPS: "clips", PHOTO: PHOTOGRAPHS}.get(model, "shapes")


def samples_for(model: str, split: Split, total: int) -> Iterator[Sample]:
    """Generate questions of a split of the drawn world that a model knows, always the same ones.

    All other models get scenes of shapes, on which they can be timed.
    """
    generate = {"things": things.samples, "clips": things.clip_samples}
    return generate.get(world_of(model), shapes.samples)(split, total)
