"""FastV: after two layers, keep the tokens that the last text token attends to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from eadp.core import Selection
from eadp.methods.base import Need, register_method
from eadp.methods.inside import Cut, InsideMethod, LayerView, select_highest, select_highest_of_all


@register_method
@dataclass(frozen=True)
class FastV(InsideMethod):
    """At the input of layer K, keep the tokens to which the last token of the prompt attends most in layer K − 1.

    Paper: "An Image is Worth 1/2 Tokens After Layer 2", ECCV 2024.

    Release, the default, in the variant that removes tokens (another one only masks them): K = 2, counted from 0. The
    attention of layer 1 is averaged over heads. Kept tokens stay in order and keep their positions.

    Departures: K scales with the depth of the model. With several `layers`, each cut keeps the same share.
    """

    name: ClassVar[str] = "fastv"
    citation: ClassVar[str] = "An Image is Worth 1/2 Tokens After Layer 2 (ECCV 2024)"
    needs: ClassVar[frozenset[Need]] = frozenset({"language_attention"})

    def choose(self, cut: Cut, view: LayerView) -> Selection:
        return select_highest(view.attention()[0], cut, self.name)

    def choose_batch(self, cuts: Sequence[Cut], views: Sequence[LayerView]) -> list[Selection]:
        return select_highest_of_all([view.attention()[0] for view in views], cuts, self.name)
