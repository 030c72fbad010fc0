"""Whether EADP's relevance maps point at the objects that a question is about, measured on the pocket world.

The pocket world knows the boxes of these objects.
"""

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
class PointingResult:
    """How well relevance maps point at the objects that questions are about.

    Attributes:
        ratios: Per question, the mean relevance inside the objects' boxes divided by the mean outside.
        ordered: Per question with both kinds of words, whether content words have a lower mean entropy than the others.
    """

    ratios: list[float]
    ordered: list[bool]

    @property
    def ratio(self) -> float:
        """The mean of `ratios`."""
        return sum(self.ratios) / len(self.ratios)

    @property
    def in_order(self) -> float:
        """The share of questions whose content words have the lower entropy."""
        return sum(self.ordered) / len(self.ordered)


CONTENT_WORDS = {*COLOURS, *SHAPES, *(f"{shape}s" for shape in SHAPES), "crosses"}
"""Words that name something visible."""


@torch.inference_mode()
def measure_pointing(total: int, split: Split = "test", sign: float | None = None, **settings: Any) -> PointingResult:
    """Measure EADP's relevance maps on questions about objects that are in the image.

    Args:
        total: The number of questions to draw. Those about absent objects are skipped.
        split: The split of the pocket world.
        sign: The sign of the guide's similarities; None for the pocket model's own.
        **settings: Settings of EADP.
    """
    model, processor = load()
    guide = pocket_guide(model, processor, sign)
    result = PointingResult([], [])
    with attach(model, processor, method="eadp", keep=1, guide=guide, **settings) as pruned:
        for sample in samples(split, total):
            if not sample.boxes:
                continue
            model(**build_inputs(processor, [sample.image], [sample.question]), logits_to_keep=1)
            relevance = cast(Relevance, pruned.last[0].relevance)
            inside = cells_in_boxes(pruned.images[0].grids[0], sample.boxes)
            result.ratios.append((relevance.score[inside].mean() / relevance.score[~inside].mean()).item())
            if relevance.words is not None:
                content = torch.tensor([word.lower().strip(" ?.,") in CONTENT_WORDS for word in relevance.words])
                if content.any() and not content.all():
                    lower = relevance.word_entropy[content].mean() < relevance.word_entropy[~content].mean()
                    result.ordered.append(bool(lower))
    return result
