"""CDPruner: diversity conditioned on the question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

from eadp.core import Selection, TextGuide, TextLayout, VisualTokens, dpp_by_quota, split_evenly
from eadp.core.scoring import min_max
from eadp.methods._pooled_text import pooled_similarity
from eadp.methods.base import Need, register_method
from eadp.methods.before import BeforeMethod
from eadp.methods.settings import Range


@register_method
@dataclass(frozen=True)
class CDPruner(BeforeMethod):
    """Keep the T tokens that are both relevant to the question and different from each other.

    Relevance is r_i = sign · cos(v_i, pooled), scaled by min-max to (0, 1]. The tokens are the greedy MAP solution of
    the determinantal point process with kernel L_ij = r_i · cos(f_i, f_j) · r_j, exactly T of them.

    Paper: "Beyond Attention or Similarity: Maximizing Conditional Diversity for Token Pruning in MLLMs", NeurIPS 2025.
    The pooled text comes from CLIP or SigLIP on models with such a vision tower, and is the mean of the question's
    input embeddings on others.

    Release, the default: Every crop keeps the same number of tokens, selected with a kernel of its own. The min-max is
    taken over all crops together, with 1e-6 added to the numerator. Frames have a min-max each, as in EADP's
    repository.

    Departures: `scope="image"` and `theta`.

    Attributes:
        scope: "block": each crop or frame has the same share of the budget (release). "image": all tokens of the image
            compete.
        theta: θ, the weight of relevance against diversity in [0, 1): r ← exp(αr) with α = θ/(2(1 − θ)). 0 is diversity
            alone. None, the default, leaves r as it is.
    """

    name: ClassVar[str] = "cdpruner"
    citation: ClassVar[str] = "CDPruner (NeurIPS 2025)"
    needs: ClassVar[frozenset[Need]] = frozenset({"text"})
    presets: ClassVar[tuple[str, ...]] = ("theta: relevance against diversity",)

    scope: Literal["block", "image"] = "block"
    theta: Annotated[float, Range(0, 1, open_high=True)] | None = None

    @property
    def text_layout(self) -> TextLayout:
        return "slots"

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        similarity = pooled_similarity(self.name, tokens, text, cosine=True)
        image, budget = slice(0, len(tokens)), self.count_to_keep(len(tokens))
        blocks, quotas = tokens.blocks, split_evenly(tokens.grids, budget)
        if self.scope == "image":
            blocks, quotas = [image], [budget]
        # Crops of one image share a scale, frames do not.
        scales = blocks if tokens.layout is None else [image]
        relevance = torch.cat(
            [min_max(similarity[scale], numerator_epsilon=1e-6, denominator_epsilon=0.0)[0] for scale in scales]
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
