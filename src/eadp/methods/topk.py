"""Top K: the control that trusts relevance alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens, rank_descending
from eadp.methods.base import Method, Need
from eadp.methods.eadp import EADP


@dataclass(frozen=True)
class TopK(Method):
    """Keep the T tokens that EADP finds most relevant, however alike they are: its first stage without its second.

    The map is EADP's, smoothed; sharpening it would not change the order. Crops or frames share one budget.

    Paper: none, a control. Defaults: EADP's.
    """

    name: ClassVar[str] = "topk"
    citation: ClassVar[str] = "control"
    needs: ClassVar[frozenset[Need]] = frozenset({"text"})

    mu: float = EADP.mu
    """μ, weight of the pooled text against the single words."""
    q: float = EADP.q
    """Share of words that stay, lowest entropy first."""
    tau: float = EADP.tau
    """τ, temperature of a word's distribution over the image."""
    gamma: float = EADP.gamma
    """γ, temperature of the weights over words."""
    smoothing: int = EADP.smoothing
    """Side of the Gaussian, 1 for off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._eadp

    @property
    def _eadp(self) -> EADP:
        return EADP(keep=1.0, mu=self.mu, q=self.q, tau=self.tau, gamma=self.gamma, smoothing=self.smoothing)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        relevance = self._eadp.relevance(tokens, text)
        scores = cast(Tensor, relevance.smoothed)
        order = rank_descending(scores)[: self.count(len(tokens))]
        indices = order.sort().values
        return Selection(
            indices,
            len(tokens),
            self.name,
            order=order,
            quotas=tokens.quotas(indices),
            scores=scores,
            relevance=relevance,
            notes=relevance.notes,
        )
