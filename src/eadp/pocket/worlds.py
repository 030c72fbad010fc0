"""Which world a model knows: the pocket model that of shapes, all others that of things, `clips` in motion."""

from __future__ import annotations

from collections.abc import Iterator

from eadp.pocket import samples as shapes
from eadp.pocket import things
from eadp.pocket.names import CLIPS, SMOL, THINGS
from eadp.pocket.samples import Sample
from eadp.pocket.things import Split


def world_of(model: str) -> str:
    """Return the name of the world from which a model is asked: "things", "clips" or "shapes"."""
    return {THINGS: "things", SMOL: "things", CLIPS: "clips"}.get(model, "shapes")


def samples_for(model: str, split: Split, total: int) -> Iterator[Sample]:
    """Generate questions of a split of the world that a model knows, always the same ones."""
    generate = {"things": things.samples, "clips": things.clip_samples, "shapes": shapes.samples}
    return generate[world_of(model)](split, total)
