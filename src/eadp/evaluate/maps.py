"""Whether EADP's relevance maps point at what is asked, and its words tell where: on the pocket world, which knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch

from eadp.core import Relevance
from eadp.core.boxes import cells_in_boxes
from eadp.models.prompt import build_inputs
from eadp.pocket import guide as pocket_guide
from eadp.pocket import load
from eadp.pocket.samples import samples
from eadp.pocket.world import COLOURS, SHAPES, Split
from eadp.runtime import attach


@dataclass(frozen=True)
class Pointing:
    """Whether relevance maps point at what is asked.

    ratios:  for each question, mean relevance inside the boxes of what it is about over the mean outside.
    ordered: for each question that has both, whether its content words have a lower mean entropy than the others.
    """

    ratios: list[float]
    ordered: list[bool]

    @property
    def ratio(self) -> float:
        return sum(self.ratios) / len(self.ratios)

    @property
    def in_order(self) -> float:
        """Share of the questions whose content words have the lower entropy."""
        return sum(self.ordered) / len(self.ordered)


CONTENT = {*COLOURS, *SHAPES, *(f"{shape}s" for shape in SHAPES), "crosses"}
"""Words that name something to be seen."""


@torch.inference_mode()
def pointing(total: int, split: Split = "test", sign: float | None = None, **settings: Any) -> Pointing:
    """Measure EADP's maps with these settings, on questions about something that is there."""
    model, processor = load()
    guide = pocket_guide(model, processor, sign)
    found = Pointing([], [])
    with attach(model, processor, method="eadp", keep=1, guide=guide, **settings) as pruned:
        for sample in samples(split, total):
            if not sample.boxes:
                continue
            model(**build_inputs(processor, [sample.image], [sample.question]), logits_to_keep=1)
            relevance = cast(Relevance, pruned.last[0].relevance)
            inside = cells_in_boxes(pruned.images[0].grids[0], sample.boxes)
            found.ratios.append((relevance.score[inside].mean() / relevance.score[~inside].mean()).item())
            if relevance.words is not None:
                content = torch.tensor([word.lower().strip(" ?.,") in CONTENT for word in relevance.words])
                if content.any() and not content.all():
                    lower = relevance.word_entropy[content].mean() < relevance.word_entropy[~content].mean()
                    found.ordered.append(bool(lower))
    return found
