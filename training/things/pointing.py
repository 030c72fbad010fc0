"""Auxiliary losses inside the language model: where is the thing that a name names, and where is the answer?

Finding a thing among the visual tokens, finding another one from there and naming it are steps of which none lowers the
loss of the answer without the others, so a model guesses for a long time. These losses teach the first two on their
own.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from eadp.pocket.things.render import GRID
from training.things.mentions import MOST, UNKNOWN
from training.things.packing import Text


class PointingHead(nn.Module):
    """Predicts, at the last token of a name, how many such things there are, and column and row of the only one; and,
    before an answer that names a thing, column and row of that thing.

    Args:
        width: Width of the language model.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, MOST + 1 + 2 * GRID)
        self.answer = nn.Linear(width, 2 * GRID)

    def mention_loss(self, hidden: Tensor, text: Text) -> Tensor:
        """Compute the loss at the names, on hidden states of the text, B×L×d."""
        if not len(text.mentions):
            return hidden.new_zeros(())
        rows, columns = text.mentions.unbind(1)
        count, across, down = self.linear(hidden[rows, columns].float()).split((MOST + 1, GRID, GRID), -1)
        return F.cross_entropy(count, text.located[:, 0]) + _place_loss(across, down, text.located[:, 1:])

    def answer_loss(self, hidden: Tensor, text: Text) -> Tensor:
        """Compute the loss before the answers, on hidden states of the text, B×L×d."""
        rows, columns = text.answers.unbind(1)
        across, down = self.answer(hidden[rows, columns].float()).split(GRID, -1)
        return _place_loss(across, down, text.answered)


def _place_loss(across: Tensor, down: Tensor, places: Tensor) -> Tensor:
    """Compute half of the cross entropies of columns and rows, n×GRID each, where they are known."""
    if not (places != UNKNOWN).any():
        return across.new_zeros(())
    losses = (
        F.cross_entropy(logits, place, ignore_index=UNKNOWN)
        for logits, place in zip((across, down), places.unbind(1), strict=True)
    )
    return sum(losses, across.new_zeros(())) / 2
