"""CDPruner: diversity conditioned on the question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

from eadp.core import Selection, TextGuide, TextLayout, VisualTokens, dpp_by_quota, split_evenly
from eadp.core.block_layout import BlockLayout
from eadp.core.scoring import min_max
from eadp.methods._on_device import blocks_of, concatenate, is_on_device, select_picks
from eadp.methods._pooled_text import pooled_cosines
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
        (selection,) = self.select_batch([tokens], [text])
        return selection

    def select_batch(self, batch: Sequence[VisualTokens], texts: Sequence[TextGuide | None]) -> list[Selection]:
        if is_on_device(batch):
            return self._select_together(batch, texts)
        return [self._select_together([tokens], [text])[0] for tokens, text in zip(batch, texts, strict=True)]

    def _select_together(self, batch: Sequence[VisualTokens], texts: Sequence[TextGuide | None]) -> list[Selection]:
        similarity = pooled_cosines(self.name, batch, texts)
        device, budgets = similarity.device, [self.count_to_keep(len(tokens)) for tokens in batch]
        pairs = list(zip(batch, budgets, strict=True))
        if self.scope == "image":
            blocks, quotas = BlockLayout.following([len(tokens) for tokens in batch], device).blocks, budgets
        else:
            blocks = tuple(blocks_of(batch))
            quotas = [quota for tokens, budget in pairs for quota in split_evenly(tokens.grids, budget)]
        # Crops of one image share a scale, frames do not.
        scales = BlockLayout.following([size for tokens in batch for size in self._scales(tokens)], device)
        is_token = None if scales.is_regular else scales.is_token
        relevance = scales.unstack(min_max(scales.stack(similarity), 1e-6, 0.0, is_token)[0])
        weights = relevance
        if self.theta is not None:
            weights = torch.exp(self.theta / (2 * (1 - self.theta)) * relevance)
        features = concatenate([tokens.features for tokens in batch])
        waits = not is_on_device(batch)
        picks = dpp_by_quota(features, weights, blocks, quotas, wait=waits)
        scores = relevance.split([len(tokens) for tokens in batch])
        return select_picks(self.name, batch, picks, budgets, scores=scores)

    def _scales(self, tokens: VisualTokens) -> list[int]:
        """Return the numbers of tokens that share a min-max."""
        if self.scope == "image" or tokens.layout is not None:
            return [len(tokens)]
        return [block.stop - block.start for block in tokens.blocks]
