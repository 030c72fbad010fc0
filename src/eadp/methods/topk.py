"""Top K: the control that selects by relevance alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

from torch import Tensor

from eadp.core import Selection, TextGuide, VisualTokens, rank_descending
from eadp.methods._blank import even_tokens
from eadp.methods.base import Need, register_method
from eadp.methods.before import BeforeMethod
from eadp.methods.eadp import EADP, Temperature
from eadp.methods.settings import Range


@register_method
@dataclass(frozen=True)
class TopK(BeforeMethod):
    """Keep the T tokens that EADP finds most relevant, however similar they are: its first stage without its second.

    Scores are EADP's smoothed map; sharpening it would not change the order. Crops or frames share one budget. If the
    text does not tell the tokens apart, those on an even grid stay, and the notes of the selection say so.

    Paper: none, a control. The defaults are EADP's.

    Attributes:
        mu: μ, the weight of the pooled text against the single words.
        q: The share of words that are kept, lowest entropy first.
        tau: τ, the temperature of a word's distribution over the image.
        gamma: γ, the temperature of the weights over words.
        smoothing: The side of the Gaussian filter; 1 turns it off.
    """

    name: ClassVar[str] = "topk"
    citation: ClassVar[str] = "control"
    needs: ClassVar[frozenset[Need]] = frozenset({"text"})

    mu: Annotated[float, Range(0, 1)] = EADP.mu
    q: Annotated[float, Range(0, 1, open_low=True)] = EADP.q
    tau: Temperature = EADP.tau
    gamma: Temperature = EADP.gamma
    smoothing: Annotated[int, Range(1, 255)] = EADP.smoothing

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._eadp  # checks the values

    @property
    def _eadp(self) -> EADP:
        return EADP(keep=1.0, mu=self.mu, q=self.q, tau=self.tau, gamma=self.gamma, smoothing=self.smoothing)

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        relevance = self._eadp.relevance(tokens, text)
        scores = cast(Tensor, relevance.smoothed)
        budget = self.count_to_keep(len(tokens))
        is_constant = relevance.is_constant is not None and bool(relevance.is_constant)
        order = even_tokens(tokens, budget) if is_constant else rank_descending(scores)[:budget]
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
