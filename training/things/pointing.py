"""An auxiliary loss in the middle of the language model: where is the thing that a name names?

Finding a thing among the visual tokens and passing it on to the answer are two steps, and neither lowers the loss of
the answer without the other, so a model guesses for a long time. This loss teaches the first step on its own.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from eadp.pocket.things.render import GRID
from training.things.mentions import MOST, UNKNOWN
from training.things.packing import Text


class PointingHead(nn.Module):
    """Predicts, at the last token of a name, how many such things there are, and column and row of the only one.

    Args:
        width: Width of the language model.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, MOST + 1 + 2 * GRID)

    def loss(self, hidden: Tensor, text: Text) -> Tensor:
        """Compute the loss on the hidden states of the text, B×L×d."""
        if not len(text.mentions):
            return hidden.new_zeros(())
        rows, columns = text.mentions.unbind(1)
        count, across, down = self.linear(hidden[rows, columns].float()).split((MOST + 1, GRID, GRID), -1)
        loss = F.cross_entropy(count, text.located[:, 0])
        if (text.located[:, 1] != UNKNOWN).any():
            for logits, place in ((across, text.located[:, 1]), (down, text.located[:, 2])):
                loss = loss + 0.5 * F.cross_entropy(logits, place, ignore_index=UNKNOWN)
        return loss
