"""CDPruner: diversity conditioned on the question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from eadp.core import Selection, TextGuide, TextLayout, VisualTokens, checks, dpp_by_quota, split_evenly
from eadp.core.relevance import min_max
from eadp.methods.base import Method, Need
from eadp.methods.pooled import pooled_similarity


@dataclass(frozen=True)
class CDPruner(Method):
    """Keep the T tokens that are both relevant to the question and different from each other.

    r_i = sign · cos(v_i, pooled), min-max to (0, 1]; L_ij = r_i · cos(f_i, f_j) · r_j; greedy MAP of the determinantal
    point process with kernel L, exactly T tokens.

    Paper: "Beyond Attention or Similarity: Maximizing Conditional Diversity for Token Pruning in MLLMs", NeurIPS 2025.
    The pooled text is CLIP's or SigLIP's on models that see through these, the mean of the question's input embeddings
    elsewhere. As released: every crop keeps the same number of tokens with a kernel of its own, the min-max is over all
    crops at once, and 1e-6 is added to the difference above. Frames (as in EADP's repository) have a min-max each.
    """

    name: ClassVar[str] = "cdpruner"
    citation: ClassVar[str] = "CDPruner (NeurIPS 2025)"
    needs: ClassVar[frozenset[Need]] = frozenset({"text"})
    presets: ClassVar[tuple[str, ...]] = ("theta: relevance against diversity",)

    scope: Literal["block", "image"] = "block"
    """Each crop or frame by itself with the same share of the budget (release), or all tokens of the image as one."""
    theta: float | None = None
    """θ, weight of relevance against diversity: r ← exp(αr), α = θ/(2(1 − θ)). 0 is diversity alone. Off by default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.known("scope", self.scope, ("block", "image"))
        if self.theta is not None and not 0 <= self.theta < 1:
            raise ValueError(f"theta must lie in [0, 1), got {self.theta}")

    @property
    def text_layout(self) -> TextLayout:
        return "slots"

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        similarity = pooled_similarity(self.name, tokens, text, cosine=True)
        whole, budget = slice(0, len(tokens)), self.count(len(tokens))
        blocks, quotas = tokens.blocks, split_evenly(tokens.grids, budget)
        if self.scope == "image":
            blocks, quotas = [whole], [budget]
        # Crops of one image are measured by one scale, frames each by its own.
        scaled = blocks if tokens.layout is None else [whole]
        relevance = torch.cat(
            [min_max(similarity[part], numerator_epsilon=1e-6, denominator_epsilon=0.0) for part in scaled]
        )
        weights = relevance
        if self.theta is not None:
            weights = torch.exp(self.theta / (2 * (1 - self.theta)) * relevance)
        picks = dpp_by_quota(tokens.features, weights, blocks, quotas)
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
