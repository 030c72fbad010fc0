"""Random tokens: the control that asks whether choosing helps at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens
from eadp.methods.base import Method


@dataclass(frozen=True)
class Random(Method):
    """Keep T tokens drawn evenly without replacement; crops or frames share one budget.

    The draw depends on `seed` and on the image, so that a data set sees many draws and a run can be repeated. An image
    is told by which of its tokens are largest in a few channels: that survives the rounding of another batch size.

    Paper: none, a control.
    """

    name: ClassVar[str] = "random"
    citation: ClassVar[str] = "control"

    seed: int = 0
    """Another seed, another draw for every image."""

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        generator = torch.Generator().manual_seed(_mixed(self.seed, tokens.features))
        order = torch.randperm(len(tokens), generator=generator)[: self.count(len(tokens))]
        indices = order.sort().values
        return Selection(indices, len(tokens), self.name, order=order, quotas=tokens.quotas(indices))


def _mixed(seed: int, features: Tensor, channels: int = 8) -> int:
    """The seed and the image's largest tokens in one number of 63 bits (Horner's rule)."""
    number = seed
    for largest in features[:, :channels].detach().float().argmax(0).tolist():
        number = (number * 1_000_003 + largest + 1) % (1 << 63)
    return number
