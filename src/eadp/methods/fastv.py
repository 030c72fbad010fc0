"""FastV: after two layers, keep the tokens that the last text token attends to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from eadp.core import Selection
from eadp.core.similarity import scale_rows
from eadp.methods.base import Need, register_method
from eadp.methods.inside import Cut, InsideMethod, LayerView, select_highest, select_highest_of_all


@register_method
@dataclass(frozen=True)
class FastV(InsideMethod):
    """At the input of layer K, keep the tokens to which the last token of the prompt attends most in layer K − 1.

    Paper: "An Image is Worth 1/2 Tokens After Layer 2", ECCV 2024.

    Release, the default, in the variant that removes tokens (another one only masks them): K = 2, counted from 0. The
    attention of layer 1 is averaged over heads. Kept tokens stay in order and keep their positions.

    Departures: K scales with the depth of the model. With several `layers`, each cut keeps the same share. With `fold`,
    dropped tokens are not lost, as in the stage of HoliTom inside the language model: in the hidden states at the cut,
    each joins the kept token with the highest cosine, which becomes ½·itself + ½·the mean of those that joined it. This
    is our reading of that stage, without vectors to compare with.

    Attributes:
        fold: Fold dropped tokens into kept ones.
    """

    name: ClassVar[str] = "fastv"
    citation: ClassVar[str] = "An Image is Worth 1/2 Tokens After Layer 2 (ECCV 2024)"
    needs: ClassVar[frozenset[Need]] = frozenset({"language_attention"})

    fold: bool = False

    def choose(self, cut: Cut, view: LayerView) -> Selection:
        kept = select_highest(view.attention()[0], cut, self.name)
        if not self.fold or len(kept) == kept.total:
            return kept
        return replace(kept, merge=fold_weights(view.visual, kept.indices))

    def choose_batch(self, cuts: Sequence[Cut], views: Sequence[LayerView]) -> list[Selection]:
        if self.fold:
            return super().choose_batch(cuts, views)
        return select_highest_of_all([view.attention()[0] for view in views], cuts, self.name)


def fold_weights(states: Tensor, kept: Tensor) -> Tensor:
    """Return the K×M weights that fold each dropped token into the kept token with the highest cosine.

    Args:
        states: M×d, the hidden states of the tokens.
        kept: K, the indices of the tokens that stay.
    """
    total, device = len(states), states.device
    unit, places = scale_rows(states), torch.arange(len(kept), device=device)
    weights = torch.zeros(len(kept), total, device=device)
    is_dropped = torch.ones(total, dtype=torch.bool, device=device)
    is_dropped[kept] = False
    dropped = is_dropped.nonzero().flatten()
    nearest = (unit[dropped] @ unit[kept].T).argmax(dim=1)
    joined = torch.bincount(nearest, minlength=len(kept))
    weights[places, kept] = torch.where(joined > 0, 0.5, 1.0)
    weights[nearest, dropped] = 0.5 / joined[nearest]
    return weights
