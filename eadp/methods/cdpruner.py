"""CDPruner: diversity conditioned on the question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from eadp.core import Selection, TextGuide, VisualTokens, dpp, token_similarity
from eadp.core.relevance import min_max
from eadp.methods.base import Method, Need
from eadp.methods.pooled import pooled_similarity


@dataclass(frozen=True)
class CDPruner(Method):
    """Keep the T tokens that are both relevant to the question and different from each other.

    r_i = sign · cos(v_i, pooled), min-max to [0, 1] over the image; L_ij = r_i · cos(f_i, f_j) · r_j; greedy MAP of the
    determinantal point process with kernel L, exactly T tokens.

    Paper: "Beyond Attention or Similarity: Maximizing Conditional Diversity for Token Pruning in MLLMs", NeurIPS 2025.
    The pooled text is CLIP's on models that see through CLIP, the mean of the question's input embeddings elsewhere.
    Several crops or frames share one budget, one min-max and one kernel.
    Deviations: the sign is the guide's (−1 on CLIP, as in the paper), not always −1.
    """

    name: ClassVar[str] = "cdpruner"
    citation: ClassVar[str] = "CDPruner (NeurIPS 2025)"
    needs: ClassVar[frozenset[Need]] = frozenset({"text"})
    presets: ClassVar[tuple[str, ...]] = ("theta: relevance against diversity",)

    theta: float | None = None
    """θ, weight of relevance against diversity: r ← exp(αr), α = θ/(2(1 − θ)). 0 is diversity alone. Off by default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.theta is not None and not 0 <= self.theta < 1:
            raise ValueError(f"theta must lie in [0, 1), got {self.theta}")

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        relevance = min_max(pooled_similarity(self.name, tokens, text, cosine=True))
        weights = relevance
        if self.theta is not None:
            weights = torch.exp(self.theta / (2 * (1 - self.theta)) * relevance)
        cosine = 2 * token_similarity(tokens.features) - 1
        weights = weights.to(cosine)
        picks = dpp(weights[:, None] * cosine * weights, self.count(len(tokens)))
        indices = picks.indices.sort().values
        return Selection(
            indices,
            len(tokens),
            self.name,
            order=picks.indices,
            gains=picks.gains,
            quotas=tokens.quotas(indices),
            scores=relevance,
        )
