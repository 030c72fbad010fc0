"""CDPruner: diversity conditioned on the question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from eadp.core import OrderedPicks, Selection, TextGuide, TextLayout, VisualTokens, dpp_by_quota, split_evenly
from eadp.core.block_layout import BlockLayout
from eadp.core.deferred import defer
from eadp.core.scoring import min_max
from eadp.methods._blank import ALIKE, even_tokens, one_represents_all
from eadp.methods._on_device import blocks_of, concatenate, is_on_device, select_picks
from eadp.methods._pooled_text import POOLED_EPSILONS, PooledSimilarity, pooled_relevance, pooled_similarity
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

    Departures: `scope="image"` and `theta`. If the question is empty or does not tell the tokens apart, diversity alone
    selects; if all tokens are alike, those on an even grid stay. The notes of the selection say so.

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
        if is_on_device([tokens]):
            (selection,) = self._select_on_device([tokens], [text])
            return selection
        found = pooled_similarity(self.name, tokens, text, cosine=True)
        similarity, notes = found.values, found.notes("diversity alone selects")
        image, budget = slice(0, len(tokens)), self.count_to_keep(len(tokens))
        blocks, quotas = tokens.blocks, split_evenly(tokens.grids, budget)
        if self.scope == "image":
            blocks, quotas = [image], [budget]
        # Crops of one image share a scale, frames do not.
        scales = blocks if tokens.layout is None else [image]
        relevance = torch.cat([min_max(similarity[scale], *POOLED_EPSILONS)[0] for scale in scales])
        weights = relevance
        if self.theta is not None:
            weights = torch.exp(self.theta / (2 * (1 - self.theta)) * relevance)
        picks = dpp_by_quota(tokens.features, weights, blocks, quotas)
        if found.is_constant and one_represents_all(picks.gains, len(blocks)):
            picks, notes = OrderedPicks(even_tokens(tokens, budget), picks.gains), (*notes, ALIKE)
        indices = picks.indices.sort().values
        return Selection(
            indices,
            len(tokens),
            self.name,
            order=picks.indices,
            gains=picks.gains,
            quotas=tokens.quotas(indices),
            scores=relevance,
            notes=notes,
        )

    def select_batch(self, batch: Sequence[VisualTokens], texts: Sequence[TextGuide | None]) -> list[Selection]:
        if is_on_device(batch):
            return self._select_on_device(batch, texts)
        return super().select_batch(batch, texts)

    def _select_on_device(self, batch: Sequence[VisualTokens], texts: Sequence[TextGuide | None]) -> list[Selection]:
        """Select from all images at once, without waiting for the device."""
        relevance, is_constant = pooled_relevance(self.name, batch, texts, [self._scales(tokens) for tokens in batch])
        budgets = [self.count_to_keep(len(tokens)) for tokens in batch]
        blocks, quotas = blocks_of(batch), budgets
        if self.scope == "block":
            pairs = zip(batch, budgets, strict=True)
            quotas = [quota for tokens, budget in pairs for quota in split_evenly(tokens.grids, budget)]
        else:
            blocks = list(BlockLayout.following([len(tokens) for tokens in batch], relevance.device).blocks)
        weights = relevance
        if self.theta is not None:
            weights = torch.exp(self.theta / (2 * (1 - self.theta)) * relevance)
        features = concatenate([tokens.features for tokens in batch])
        picks = dpp_by_quota(features, weights, blocks, quotas, wait=False)
        counts = [len(tokens.grids) if self.scope == "block" else 1 for tokens in batch]
        is_alike = is_constant & self._have_alike_picks(picks.gains, budgets, counts)
        return select_picks(
            self.name,
            batch,
            picks,
            budgets,
            features,
            is_alike,
            scores=relevance.split([len(tokens) for tokens in batch]),
            notes=[
                defer(partial(_notes, is_constant, is_alike, number, _is_empty(text)))
                for number, text in enumerate(texts)
            ],
        )

    def _scales(self, tokens: VisualTokens) -> Sequence[slice]:
        """Return the ranges of tokens that share a min-max: crops of one image share a scale, frames do not."""
        return [slice(0, len(tokens))] if self.scope == "image" or tokens.layout is not None else tokens.blocks

    @staticmethod
    def _have_alike_picks(gains: Tensor, budgets: Sequence[int], blocks: Sequence[int]) -> Tensor:
        """Return for which images no pick after the first of each block gained anything."""
        gaining = BlockLayout.following(budgets, gains.device).stack(gains > 0).sum(1)
        limits = [count if count < budget else -1 for count, budget in zip(blocks, budgets, strict=True)]
        return gaining <= torch.tensor(limits).to(gaining.device)


def _is_empty(text: TextGuide | None) -> bool:
    return text is not None and text.pooled is None


def _notes(is_constant: Tensor, is_alike: Tensor, number: int, is_empty: bool) -> tuple[str, ...]:
    """Return the notes of an image: one boolean per image, whether text and tokens do not tell tokens apart."""
    found = PooledSimilarity(is_constant, bool(is_constant[number]), is_empty)
    return (*found.notes("diversity alone selects"), *((ALIKE,) if bool(is_alike[number]) else ()))
