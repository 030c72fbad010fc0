"""Random sampling: the control that tests whether selection helps at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens
from eadp.methods.base import register_method
from eadp.methods.before import BeforeMethod
from eadp.methods.settings import Range


@register_method
@dataclass(frozen=True)
class Random(BeforeMethod):
    """Keep T tokens drawn uniformly without replacement; crops or frames share one budget.

    The draw depends on `seed` and on the image, so that a data set sees many draws and a run can be repeated. The image
    is identified by which of its tokens are largest in a few channels. That does not change with the rounding of
    another batch size.

    Paper: none, a control.

    Attributes:
        seed: Another seed gives another draw for every image.
    """

    name: ClassVar[str] = "random"
    citation: ClassVar[str] = "control"

    seed: Annotated[int, Range(-(1 << 63), (1 << 63) - 1)] = 0

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        generator = torch.Generator().manual_seed(_image_seed(self.seed, tokens.features))
        order = torch.randperm(len(tokens), generator=generator)[: self.count_to_keep(len(tokens))]
        indices = order.sort().values
        return Selection(indices, len(tokens), self.name, order=order, quotas=tokens.quotas(indices))


def _image_seed(seed: int, features: Tensor, channels: int = 8) -> int:
    """Combine the seed and the largest token of each of some channels into a number of 63 bits (Horner's rule)."""
    number = seed
    for largest in features[:, :channels].detach().float().argmax(0).tolist():
        number = (number * 1_000_003 + largest + 1) % (1 << 63)
    return number
