"""DivPrune: the tokens that differ most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from eadp.core import Selection, TextGuide, VisualTokens, max_min, token_similarity
from eadp.methods.base import Method


@dataclass(frozen=True)
class DivPrune(Method):
    """Keep the T tokens that are farthest apart, whatever is asked.

    d_ij = 1 − cos(f_i, f_j). First the token whose nearest neighbour is farthest, then always the one that is farthest
    from its nearest kept token.

    Paper: "DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models", CVPR 2025. It has no settings.
    Several crops or frames share one budget and one distance. Deviations: none known; the lowest index on a tie.
    """

    name: ClassVar[str] = "divprune"
    citation: ClassVar[str] = "DivPrune (CVPR 2025)"

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        distance = 2 * (1 - token_similarity(tokens.features))
        picks = max_min(distance, self.count(len(tokens)))
        indices = picks.indices.sort().values
        return Selection(
            indices, len(tokens), self.name, order=picks.indices, gains=picks.gains, quotas=tokens.quotas(indices)
        )
