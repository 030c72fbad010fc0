"""FastV: after two layers, keep what the last word looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from eadp.core import Selection
from eadp.methods.base import Need
from eadp.methods.inside import Cut, InsideMethod, LayerView, kept_by


@dataclass(frozen=True)
class FastV(InsideMethod):
    """At the input of layer K, keep the tokens to which the last token of the prompt attends most in layer K − 1.

    Paper: "An Image is Worth 1/2 Tokens After Layer 2" (ECCV 2024). The default is its release, in the variant that
    removes tokens (another only masks them): K = 2 counted from 0, the attention of layer 1 averaged over heads, kept
    tokens in their order and at their positions. On models of another depth K scales with it; given several layers,
    each cut leaves the same share.
    """

    name: ClassVar[str] = "fastv"
    citation: ClassVar[str] = "An Image is Worth 1/2 Tokens After Layer 2 (ECCV 2024)"
    needs: ClassVar[frozenset[Need]] = frozenset({"language_attention"})

    def choose(self, cut: Cut, view: LayerView) -> Selection:
        return kept_by(view.attention()[0], cut, self.name)
