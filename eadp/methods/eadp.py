"""EADP, the method of this library."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast, get_args

import torch
from torch import Tensor

from eadp.core import (
    DENSE_LIMIT,
    Relevance,
    Selection,
    TextGuide,
    TextLayout,
    VisualTokens,
    allocate,
    checks,
    cover_by_quota,
    cover_by_share,
    polarize,
    relevance,
    smooth,
)
from eadp.core.facility import BACKENDS
from eadp.core.quotas import RULES
from eadp.core.relevance import check_settings
from eadp.core.smoothing import check_beta, check_smoothing
from eadp.methods.base import Method, Need

PUBLISHED: dict[str, dict[str, Any]] = {
    "llava": {"q": 0.2, "beta": 1.0},
    "llava_next": {"q": 0.2, "beta": 1.0},
    "qwen2_5_vl": {"q": 0.2, "beta": 2.0},
    "qwen3_vl": {"q": 0.2, "beta": 2.0},
    "llava_video": {"q": 0.5, "beta": 2.0, "aggregation": "inverse_entropy", "allocation": "uniform"},
}
"""What the authors' released code sets, by model family."""

PUBLISHED_EVERYWHERE: dict[str, Any] = {"exact": False, "words": "slots"}
"""What it does in every family and the paper does not say. (On Qwen3-VL it drops DeepStack features too: we do not.)"""


@dataclass(frozen=True)
class EADP(Method):
    """Score tokens by the words that point somewhere, smooth and sharpen the map, keep the tokens that cover it best.

    Paper: "Combating Textual Noise and Redundancy: Entropy-Aware Dense Visual Token Pruning", ECCV 2026.
    The defaults are the paper's, but for `exact`: quotas of several blocks add up to the budget. For β the paper gives
    no figure, only β > 1; ours is 2, where the best averages of its ablation begin.
    """

    name: ClassVar[str] = "eadp"
    citation: ClassVar[str] = "Entropy-Aware Dense Visual Token Pruning (ECCV 2026)"
    needs: ClassVar[frozenset[Need]] = frozenset({"text"})
    presets: ClassVar[tuple[str, ...]] = ("EADP.paper(keep)", "EADP.published(keep, family)")

    coverage: float | None = field(default=None, kw_only=True)
    """Instead of a count: as few tokens as represent this share of the weighted image, with `keep` at most that many.
    Blocks then share the budget by themselves: the next token comes from wherever it gains most."""
    mu: float = 0.5
    """μ, weight of the pooled text against the single words. Paper, eq. 9 and its ablation's best."""
    q: float = 0.5
    """Share of words that stay, lowest entropy first. Paper, eq. 6; 0.3 was best in its ablation by 0.1."""
    tau: float = 0.01
    """τ, temperature of a word's distribution over the image. Paper, eq. 4."""
    gamma: float = 0.01
    """γ, temperature of the weights over words. Paper, eq. 7."""
    dispersion: str = "entropy"
    """How dispersion is measured: entropy (paper, eq. 5), central_mass, variance (its ablation)."""
    aggregation: str = "neg_entropy"
    """How kept words are weighed: neg_entropy (paper, eq. 7), inverse_entropy, topk, gated (its ablation)."""
    smoothing: int = 3
    """Side of the Gaussian, 1 for off. Paper, eq. 11; 5 and 7 in its ablation."""
    sigma: float = 1.0
    """σ of the Gaussian. Paper, supplement."""
    beta: float = 2.0
    """β, the power that sharpens the map. Paper, eq. 12: > 1; its ablation tries 0, 0.5, 2, 5, 10."""
    allocation: str = "importance"
    """How crops or frames share the budget: importance (paper, supplement), global_guided (its ablation), uniform."""
    exact: bool = True
    """Quotas add up to the budget. The paper's floors may leave tokens over: False."""
    words: TextLayout = "words"
    """What counts as a word: the instruction's own tokens (paper), or every slot of the text encoder (release)."""
    backend: str = "auto"
    """Solver of the selection: auto, numba, torch, rows."""
    matrix_limit: int = DENSE_LIMIT
    """Bytes that a block's similarity matrix may take; beyond, its rows are computed on the fly."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep is None and self.coverage is None:
            raise ValueError(
                "EADP needs keep= (a count such as 128, or a share such as 0.25) or coverage= (such as 0.95)"
            )
        if self.coverage is not None:
            checks.share("coverage", self.coverage)
        check_settings(self.mu, self.q, self.tau, self.gamma, self.dispersion, self.aggregation)
        check_smoothing(self.smoothing, self.sigma)
        check_beta(self.beta)
        checks.known("allocation rule", self.allocation, RULES)
        checks.known("backend", self.backend, BACKENDS)
        checks.known("words", self.words, get_args(TextLayout))

    @classmethod
    def paper(cls, keep: int | float, **settings: Any) -> EADP:
        """As the paper describes it: the defaults, with its floors."""
        return cls(keep=keep, **{"exact": False, **settings})

    @classmethod
    def published(cls, keep: int | float, family: str, **settings: Any) -> EADP:
        """As the authors' released code does it for this model family."""
        checks.known("family", family, PUBLISHED)
        return cls(keep=keep, **{**PUBLISHED_EVERYWHERE, **PUBLISHED[family], **settings})

    @property
    def text_layout(self) -> TextLayout:
        return self.words

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        limit = None if self.keep is None else self.count(len(tokens))
        relevant = self.relevance(tokens, text)
        weights = cast(Tensor, relevant.polarized)
        solver: dict[str, Any] = {"backend": self.backend, "matrix_limit": self.matrix_limit}
        if self.coverage is None:
            maps = [weights[block].view(grid) for block, grid in zip(tokens.blocks, tokens.grids, strict=True)]
            quotas = allocate(maps, self.count(len(tokens)), self.allocation, self.exact, tokens.layout)
            found = cover_by_quota(tokens.features, weights, tokens.blocks, quotas, **solver)
        else:
            found = cover_by_share(tokens.features, weights, tokens.blocks, self.coverage, limit, **solver)
        indices = found.indices.sort().values
        return Selection(
            indices=indices,
            total=len(tokens),
            method=self.name,
            order=found.indices,
            gains=found.gains,
            coverage=found.coverage,
            bound=found.bound,
            quotas=tokens.quotas(indices),
            scores=weights,
            relevance=relevant,
            notes=relevant.notes,
        )

    def relevance(self, tokens: VisualTokens, text: TextGuide | None) -> Relevance:
        """Stage 1, and the map smoothed and sharpened: every intermediate."""
        if text is None:
            raise ValueError("EADP needs the question: give a TextGuide, or use a method that needs no text")
        if tokens.aligned is None:
            raise ValueError("EADP needs `aligned`: the visual tokens in the space of the text")
        relevant = relevance(
            tokens.aligned,
            text.tokens,
            text.pooled,
            mu=self.mu,
            q=self.q,
            tau=self.tau,
            gamma=self.gamma,
            sign=text.sign,
            dispersion=self.dispersion,
            aggregation=self.aggregation,
        )
        maps = zip(tokens.blocks, tokens.grids, strict=True)
        smoothed = torch.cat([smooth(relevant.score[block], grid, self.smoothing, self.sigma) for block, grid in maps])
        words = None if text.words is None else tuple(text.words)
        return replace(relevant, smoothed=smoothed, polarized=polarize(smoothed, self.beta), words=words)
