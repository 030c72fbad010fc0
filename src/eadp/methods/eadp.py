"""EADP, the method of this library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, cast, get_args

import torch
from torch import Tensor

from eadp.core import (
    DEFAULT_MATRIX_LIMIT,
    Aggregation,
    FacilityLocationResult,
    OrderedPicks,
    Relevance,
    Scoring,
    Selection,
    TextGuide,
    TextLayout,
    VisualTokens,
    allocate,
    checks,
    dpp_by_quota,
    facility_location_by_coverage,
    facility_location_by_quota,
    polarize,
    rank_descending,
    relevance,
    smooth_maps,
)
from eadp.core.facility import BACKENDS
from eadp.core.quotas import ALLOCATION_RULES, ROUNDINGS
from eadp.core.smoothing import check_beta, check_smoothing, guess_grids
from eadp.methods.base import Method, Need

Scope = Literal["block", "image", "pool"]
Picking = Literal["facility_location", "dpp", "topk"]

RELEASED: dict[str, Any] = {
    "q": 0.2,
    "words": "slots",
    "word_count": "floor",
    "gamma": 0.01 + 1e-6,
    "lift": 1e-6,
    "rounding": "released",
}
"""What the authors' release does on all its models and the paper does not say."""

LLAVA: dict[str, Any] = {**RELEASED, "beta": 1.0, "smoothing_grid": "guessed"}
QWEN: dict[str, Any] = {**RELEASED, "beta": 2.0, "scope": "pool"}
VIDEO: dict[str, Any] = {
    **RELEASED,
    "q": 0.5,
    "beta": 2.0,
    "gamma": 0.01,
    "aggregation": "inverse_entropy",
    "normalised_over": "block",
    "allocation": "uniform",
    "similarity": "aligned",
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "llava": LLAVA,
    "llava_next": LLAVA,
    "llava_video": VIDEO,
    "llava_onevision": VIDEO,
    "qwen2_5_vl": QWEN,
    "qwen3_vl": {**QWEN, "deepstack": False},
}
"""The release's settings by family of models. LLaVA-Video is LLaVA-OneVision's architecture."""

PAPER: dict[str, Any] = {"rounding": "paper"}
"""What the paper's text has and our defaults have not."""


@dataclass(frozen=True)
class EADP(Method):
    """Score tokens by the words that point somewhere, smooth and sharpen the map, keep the tokens that cover it best.

    Paper: "Combating Textual Noise and Redundancy: Entropy-Aware Dense Visual Token Pruning", ECCV 2026.
    The defaults are the paper's, but for `rounding`: quotas of several blocks add up to the budget. For β the paper
    gives no figure, only β > 1; ours is 2, where the best averages of its ablation begin. `EADP.paper` is its text,
    `EADP.published` the release of its authors; docs/parity.md lists where these differ.
    Positions are renumbered and newlines dropped, as the release does on every model.
    """

    name: ClassVar[str] = "eadp"
    citation: ClassVar[str] = "Entropy-Aware Dense Visual Token Pruning (ECCV 2026)"
    needs: ClassVar[frozenset[Need]] = frozenset({"text"})
    presets: ClassVar[tuple[str, ...]] = ("paper: its text", "published: its authors' release, for each model")

    coverage: float | None = field(default=None, kw_only=True)
    """Instead of a count: as few tokens as represent this share of the weighted image, with `keep` at most that many.
    Blocks then share the budget by themselves: the next token comes from wherever it gains most."""
    mu: float = 0.5
    """μ, weight of the pooled text against the single words. Paper, eq. 9 and its ablation's best; the release's
    scripts set 0.5, but 1.0 for POPE and 0.0 for VizWiz."""
    q: float = 0.5
    """Share of words that stay, lowest entropy first. Paper, eq. 6; 0.3 was best in its ablation by 0.1. Release: 0.2,
    on video 0.5."""
    tau: float = 0.01
    """τ, temperature of a word's distribution over the image. Paper, eq. 4."""
    gamma: float = 0.01
    """γ, temperature of the weights over words. Paper, eq. 7. The release adds 1e-6 to it."""
    dispersion: str = "entropy"
    """How dispersion is measured: entropy (paper, eq. 5), central_mass, variance (its ablation; not in the release)."""
    aggregation: str = "neg_entropy"
    """How kept words are weighed: neg_entropy (paper, eq. 7), inverse_entropy (release on video), inverse_entropy_flat,
    topk, gated, gated_softmax (its ablation)."""
    theta: float = 1.0
    """θ of the gated aggregations. Release."""
    top_words: int = 5
    """How many words `topk` averages in each token. Release."""
    words: TextLayout = "words"
    """What counts as a word: the instruction's own tokens (paper), or every slot of the text encoder (release)."""
    word_count: str = "quantile"
    """How the share q is counted: quantile, ⌈q·M⌉ and ties (paper), or floor, ⌊q·M⌋ (release)."""
    scope: Scope = "block"
    """Whose tokens a word's distribution is over. block: each crop's or frame's own (Algorithm 1 has a batch dimension,
    and the release does so). image: all crops together; their maps are still smoothed and covered one by one. pool: no
    blocks at all, one map that is smoothed only where it is one rectangle (release on Qwen)."""
    normalised_over: str = "image"
    """The min-max is taken over all blocks together (Algorithm 1; release on LLaVA), or over each block (release on
    video)."""
    lift: float = 0.0
    """Added above and below the fraction of the min-max: the least relevant token still counts. Release: 1e-6."""
    smoothing: int = 3
    """Side of the Gaussian, 1 for off. Paper, eq. 11; 5 and 7 in its ablation."""
    sigma: float = 1.0
    """σ of the Gaussian. Paper, supplement."""
    smoothing_grid: str = "own"
    """Which map is smoothed: each block's own grid, or the one that the release on LLaVA guesses from its size."""
    beta: float = 2.0
    """β, the power that sharpens the map. Paper, eq. 12: > 1; its ablation tries 0, 0.5, 2, 5, 10. Release: 1 on LLaVA,
    2 on Qwen and video."""
    allocation: str = "importance"
    """How crops or frames share the budget: importance (paper, supplement; release on LLaVA-NeXT), global_guided (its
    ablation), uniform (release on video)."""
    rounding: str = "exact"
    """Quotas add up to the budget (exact), or are rounded as in the paper or as released: see `core.allocate`."""
    similarity: Literal["features", "aligned"] = "features"
    """Which rows tokens represent each other by: the projected features, or the tower's rows (release on video)."""
    selection: Picking = "facility_location"
    """How tokens are picked: facility_location (the method), dpp or topk (the paper's ablation)."""
    deepstack: bool = True
    """Whether Qwen3-VL's DeepStack features go with the kept tokens. The release drops them."""
    backend: str = "auto"
    """Solver of the selection: auto, numba, torch, rows."""
    matrix_limit: int = DEFAULT_MATRIX_LIMIT
    """Bytes that a block's similarity matrix may take; beyond, its rows are computed on the fly."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep is None and self.coverage is None:
            raise ValueError(
                "EADP needs keep= (a count such as 128, or a share such as 0.25) or coverage= (such as 0.95)"
            )
        if self.coverage is not None:
            checks.share("coverage", self.coverage)
            if self.selection != "facility_location":
                raise ValueError(
                    f"only facility_location reaches a coverage=; selection={self.selection!r} needs keep="
                )
        _ = self.scoring
        check_smoothing(self.smoothing, self.sigma)
        check_beta(self.beta)
        checks.known("allocation rule", self.allocation, ALLOCATION_RULES)
        checks.known("rounding", self.rounding, ROUNDINGS)
        checks.known("backend", self.backend, BACKENDS)
        checks.known("words", self.words, get_args(TextLayout))
        checks.known("scope", self.scope, get_args(Scope))
        checks.known("smoothing_grid", self.smoothing_grid, ("own", "guessed"))
        checks.known("similarity", self.similarity, ("features", "aligned"))
        checks.known("selection", self.selection, get_args(Picking))

    @classmethod
    def preset(cls, name: str, family: str) -> dict[str, Any]:
        checks.known("preset", name, ("paper", "published"))
        if name == "paper":
            return PAPER
        checks.known("family with a published EADP", family, PUBLISHED)
        return PUBLISHED[family]

    @classmethod
    def paper(cls, keep: int | float, family: str = "llava", **settings: Any) -> EADP:
        """As the paper describes it, on every family alike: the defaults, with its floors."""
        return cls(keep=keep, **{**cls.preset("paper", family), **settings})

    @classmethod
    def published(cls, keep: int | float, family: str, **settings: Any) -> EADP:
        """As the authors' released code does it for this family of models."""
        return cls(keep=keep, **{**cls.preset("published", family), **settings})

    @property
    def text_layout(self) -> TextLayout:
        return self.words

    @property
    def keeps_deepstack(self) -> bool:
        return self.deepstack

    @cached_property
    def scoring(self) -> Scoring:
        """The settings of stage 1."""
        return Scoring(
            mu=self.mu,
            q=self.q,
            tau=self.tau,
            dispersion=self.dispersion,
            word_count=self.word_count,
            aggregation=Aggregation(self.aggregation, self.gamma, self.theta, self.top_words),
            normalised_over=self.normalised_over,
            lift=self.lift,
        )

    def select(self, tokens: VisualTokens, text: TextGuide | None = None) -> Selection:
        limit = None if self.keep is None else self.count(len(tokens))
        relevant = self.relevance(tokens, text)
        weights = cast(Tensor, relevant.polarized)
        rows = tokens.features if self.similarity == "features" else cast(Tensor, tokens.aligned)
        blocks = [slice(0, len(tokens))] if self.scope == "pool" else tokens.blocks
        picks: OrderedPicks | FacilityLocationResult
        covered: FacilityLocationResult | None = None
        solver: dict[str, Any] = {"backend": self.backend, "matrix_limit": self.matrix_limit}
        if self.coverage is not None:
            picks = covered = facility_location_by_coverage(rows, weights, blocks, self.coverage, limit, **solver)
        else:
            quotas = self._quotas(tokens, weights, cast(int, limit))
            if self.selection == "facility_location":
                picks = covered = facility_location_by_quota(rows, weights, blocks, quotas, **solver)
            else:
                picks = PICKED[self.selection](rows, weights, blocks, quotas)
        indices = picks.indices.sort().values
        return Selection(
            indices=indices,
            total=len(tokens),
            method=self.name,
            order=picks.indices,
            gains=picks.gains,
            coverage=None if covered is None else covered.coverage,
            bound=None if covered is None else covered.bound,
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
        blocks = tokens.blocks if self.scope == "block" else None
        relevant = relevance(
            tokens.aligned, text.tokens, text.pooled, blocks=blocks, sign=text.sign, scoring=self.scoring
        )
        smoothed = self._smoothed(tokens, relevant.score)
        words = None if text.words is None else tuple(text.words)
        return replace(relevant, smoothed=smoothed, polarized=polarize(smoothed, self.beta), words=words)

    def _smoothed(self, tokens: VisualTokens, score: Tensor) -> Tensor:
        if self.scope == "pool" and len(tokens.grids) > 1:
            return score
        parts = []
        for block, (rows, columns) in zip(tokens.blocks, tokens.grids, strict=True):
            maps = [(rows, columns)] if self.smoothing_grid == "own" else guess_grids(rows * columns)
            parts.append(smooth_maps(score[block], maps, self.smoothing, self.sigma) if maps else score[block])
        return torch.cat(parts)

    def _quotas(self, tokens: VisualTokens, weights: Tensor, budget: int) -> list[int]:
        if self.scope == "pool":
            return [budget]
        maps = [weights[block].view(grid) for block, grid in zip(tokens.blocks, tokens.grids, strict=True)]
        return allocate(maps, budget, self.allocation, self.rounding, tokens.layout)


def _most_relevant(rows: Tensor, weights: Tensor, blocks: Sequence[slice], quotas: Sequence[int]) -> OrderedPicks:
    """The tokens of largest weight in each block, however alike."""
    parts = zip(blocks, quotas, strict=True)
    order = torch.cat([rank_descending(weights[block])[:quota] + block.start for block, quota in parts])
    return OrderedPicks(order, weights[order])


PICKED = {"topk": _most_relevant, "dpp": dpp_by_quota}
