"""Stage 1: dispersion-aware dense scoring and fusion (Eq. 2 to 10).

Each visual token gets an instruction relevance score: a weighted sum of its similarity to the whole question (global
guidance) and to the single words (dense guidance). Words whose similarity is dispersed over the whole image are noise
and are filtered out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eadp.core import checks
from eadp.core.similarity import unit_rows
from eadp.core.trace import part
from eadp.core.types import Relevance

EPSILON = 1e-8
"""ε in the denominator of the min-max normalization (Eq. 10)."""

CONSTANT_RANGE = 1e-6
"""A map whose values span no more than this counts as constant: the differences are rounding."""

RELEASE_EPSILON = 1e-6
"""Added by EADP's release to denominators in the ablated aggregations."""

WORD_COUNTS = ("quantile", "floor")
NORMALISED_OVER = ("image", "block")


# ── Dispersion: one value per word; larger is more dispersed ──────────────────────────────────────────────────────────


def word_distribution(similarity: Tensor, tau: float) -> Tensor:
    """Compute each word's distribution over the tokens: p_ij = softmax_j(c_ij / τ) (Eq. 4).

    Args:
        similarity: M×N, c.
        tau: Temperature τ.

    Returns:
        M×N.
    """
    return torch.softmax(similarity / tau, dim=1)


def entropy(similarity: Tensor, tau: float) -> Tensor:
    """Compute the entropy of each word: h_i = −Σ_j p_ij log p_ij (Eq. 5).

    Args:
        similarity: M×N, c.
        tau: Temperature τ of the distribution p.

    Returns:
        M.
    """
    return torch.special.entr(word_distribution(similarity, tau)).sum(dim=1)


def central_mass(similarity: Tensor, tau: float, cells: float = 0.05) -> Tensor:
    """Compute the probability mass outside the most probable tokens (central mass ratio of the ablation).

    Args:
        similarity: M×N, c.
        tau: Temperature τ of the distribution p.
        cells: Share of the N tokens that count as the most probable ones.

    Returns:
        M.
    """
    top = max(1, math.ceil(cells * similarity.shape[1]))
    return 1 - word_distribution(similarity, tau).topk(top, dim=1).values.sum(dim=1)


def variance(similarity: Tensor, tau: float) -> Tensor:
    """Compute −Var_j(c_ij): a dispersed map varies least (variance of the ablation).

    Args:
        similarity: M×N, c.
        tau: Not used.

    Returns:
        M.
    """
    return -similarity.var(dim=1, correction=0)


DISPERSIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "entropy": entropy,
    "central_mass": central_mass,
    "variance": variance,
}
"""The dispersion measures by name."""


def filter_words(dispersion: Tensor, q: float, word_count: str = "quantile") -> Tensor:
    """Find the words of lowest dispersion: T' = {i : h_i ≤ Q_q(H)} (Eq. 6).

    Args:
        dispersion: M.
        q: Share of words to keep, in (0, 1].
        word_count: `quantile` keeps the ⌈q·M⌉ lowest and all that tie with the last of them, as in the paper. `floor`
            keeps exactly max(1, ⌊q·M⌋), the first of equal ones, as in the release.

    Returns:
        M, true for words that are kept.
    """
    words = len(dispersion)
    if word_count == "floor":
        kept = torch.zeros_like(dispersion, dtype=torch.bool)
        kept[dispersion.sort(stable=True).indices[: max(1, math.floor(q * words))]] = True
        return kept
    # Rounding q·M first makes 0.3 · 10 equal to 3: in binary it is slightly more, and its ceiling would be 4.
    keep = max(1, math.ceil(round(q * words, 9)))
    return dispersion <= dispersion.kthvalue(keep).values


# ── Aggregation: the weight of each kept word ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Aggregation:
    """How the kept words are weighted.

    Attributes:
        name: One of `AGGREGATIONS`.
        gamma: Temperature γ.
        theta: θ of the gated aggregations.
        top_words: k of `topk`.
    """

    name: str = "neg_entropy"
    gamma: float = 0.01
    theta: float = 1.0
    top_words: int = 5

    def __post_init__(self) -> None:
        checks.known("aggregation", self.name, AGGREGATIONS)
        checks.positive("gamma", self.gamma)
        checks.positive("theta", self.theta)
        checks.positive("top_words", self.top_words)

    def weights(self, similarity: Tensor, dispersion: Tensor) -> Tensor:
        """Compute the weights α of the kept words.

        Args:
            similarity: k×N, c of the k kept words.
            dispersion: k.

        Returns:
            k, or k×N for aggregations that weight the words differently for each token.
        """
        return AGGREGATIONS[self.name](similarity, dispersion, self)


def neg_entropy(similarity: Tensor, dispersion: Tensor, settings: Aggregation) -> Tensor:
    """α_i = softmax_i(−h_i / γ) (Eq. 7): the paper's method, style 4 of its ablation."""
    return torch.softmax(-dispersion / settings.gamma, dim=0)


def inverse_entropy(similarity: Tensor, dispersion: Tensor, settings: Aggregation) -> Tensor:
    """α_ij = softmax_i(c_ij / (γ·(h_i + 1e-6))): weighted inverse entropy, style 1 of the ablation.

    Each token has its own weights. The paper's formula, c_ij/h_i * γ, can also be read as c_ij·γ / h_i; this is what
    the release computes.
    """
    return torch.softmax(similarity / _entropy_temperature(dispersion, settings)[:, None], dim=0)


def inverse_entropy_flat(similarity: Tensor, dispersion: Tensor, settings: Aggregation) -> Tensor:
    """α_i = softmax_i(1 / (γ·(h_i + 1e-6))): style 1 of the ablation without the similarity."""
    return torch.softmax(1 / _entropy_temperature(dispersion, settings), dim=0)


def _entropy_temperature(dispersion: Tensor, settings: Aggregation) -> Tensor:
    if not (dispersion >= 0).all():
        raise ValueError(
            f"aggregation {settings.name!r} divides by the dispersion, which must not be negative, but one word has "
            f"{dispersion.min().item():.3g}; use it with dispersion 'entropy' or 'central_mass'"
        )
    return settings.gamma * (dispersion + RELEASE_EPSILON)


def topk(similarity: Tensor, dispersion: Tensor, settings: Aggregation) -> Tensor:
    """α_ij = 1/k for the k words most similar to token j, otherwise 0: style 2 of the ablation."""
    k = min(settings.top_words, len(similarity))
    chosen = similarity.topk(k, dim=0).indices
    return torch.zeros_like(similarity).scatter_(0, chosen, 1 / k)


def gated(similarity: Tensor, dispersion: Tensor, settings: Aggregation) -> Tensor:
    """α_i = g_i / (Σ_i g_i + 1e-6) with g_i = σ(θ·(mean(h) − h_i)): style 3 of the ablation, as released."""
    gate = torch.sigmoid(settings.theta * (dispersion.mean() - dispersion))
    return gate / (gate.sum() + RELEASE_EPSILON)


def gated_softmax(similarity: Tensor, dispersion: Tensor, settings: Aggregation) -> Tensor:
    """α_i = softmax_i(θ·(mean(h) − h_i)): style 3 of the ablation, as the paper writes it.

    The mean cancels in the softmax, so this equals `neg_entropy` with γ = 1/θ.
    """
    return torch.softmax(settings.theta * (dispersion.mean() - dispersion), dim=0)


AGGREGATIONS: dict[str, Callable[[Tensor, Tensor, Aggregation], Tensor]] = {
    "neg_entropy": neg_entropy,
    "inverse_entropy": inverse_entropy,
    "inverse_entropy_flat": inverse_entropy_flat,
    "topk": topk,
    "gated": gated,
    "gated_softmax": gated_softmax,
}
"""The aggregations by name. Each takes the similarity (k×N) and dispersion (k) of the kept words and the settings."""


# ── The score ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def min_max(score: Tensor, numerator_epsilon: float = 0.0, denominator_epsilon: float = EPSILON) -> Tensor:
    """Normalize a map: (s − min + ε₁) / (max − min + ε₂) (Eq. 10, where ε₁ = 0). A constant map becomes all 1.

    Args:
        score: N.
        numerator_epsilon: ε₁.
        denominator_epsilon: ε₂.

    Returns:
        N.
    """
    if is_constant(score):
        return torch.ones_like(score)
    low, high = score.min(), score.max()
    return (score - low + numerator_epsilon) / (high - low + denominator_epsilon)


def is_constant(score: Tensor) -> bool:
    """Return whether a map has the same value everywhere, up to rounding."""
    return not bool(score.max() - score.min() > CONSTANT_RANGE)


@dataclass(frozen=True)
class Scoring:
    """Settings of stage 1.

    Attributes:
        mu: μ, the weight of the global guidance score against the dense guidance score (Eq. 9).
        q: Share of words to keep, lowest dispersion first (Eq. 6).
        tau: Temperature τ of a word's distribution over the tokens (Eq. 4).
        dispersion: What the words are ranked by; one of `DISPERSIONS`.
        word_count: How the share q is counted; see `filter_words`.
        aggregation: How the kept words are weighted (Eq. 7).
        normalised_over: Whether the min-max normalization (Eq. 10) is taken over all blocks of the image together
            (`image`) or over each block separately (`block`).
        lift: Added to the numerator and the denominator of the min-max normalization, so that the lowest score is
            slightly above 0. 0 for the paper's ε in the denominator only.
    """

    mu: float = 0.5
    q: float = 0.5
    tau: float = 0.01
    dispersion: str = "entropy"
    word_count: str = "quantile"
    aggregation: Aggregation = Aggregation()
    normalised_over: str = "image"
    lift: float = 0.0

    def __post_init__(self) -> None:
        checks.unit_interval("mu", self.mu)
        checks.share("q", self.q)
        checks.positive("tau", self.tau)
        checks.known("dispersion", self.dispersion, DISPERSIONS)
        checks.known("word_count", self.word_count, WORD_COUNTS)
        checks.known("normalised_over", self.normalised_over, NORMALISED_OVER)
        if not 0 <= self.lift < 1:
            raise ValueError(f"lift must lie in [0, 1), got {self.lift}")

    def normalize(self, score: Tensor) -> Tensor:
        """Apply the min-max normalization with these settings."""
        return min_max(score, self.lift, self.lift or EPSILON)


@dataclass(frozen=True)
class _DenseGuidance:
    """Filter and weights of one segment's M words on one block of N tokens."""

    entropy: Tensor
    dispersion: Tensor
    kept: Tensor
    weights: Tensor


def _dense_guidance(similarity: Tensor, scoring: Scoring) -> _DenseGuidance:
    """Filter and weight M words (Eq. 4 to 7) by their M×N similarity to one block. Weights are 0 for dropped words."""
    h = entropy(similarity, scoring.tau)
    dispersion = h if scoring.dispersion == "entropy" else DISPERSIONS[scoring.dispersion](similarity, scoring.tau)
    kept = filter_words(dispersion, scoring.q, scoring.word_count)
    alpha = scoring.aggregation.weights(similarity[kept], dispersion[kept])
    weights = torch.zeros_like(similarity)
    weights[kept] = alpha if alpha.ndim == 2 else alpha[:, None].expand(-1, similarity.shape[1])
    return _DenseGuidance(h, dispersion, kept, weights)


@part("relevance")
def relevance(
    visual: Tensor,
    text: Tensor | Sequence[Tensor] | None,
    pooled: Tensor | Sequence[Tensor] | None,
    *,
    blocks: Sequence[slice] | None = None,
    sign: float = -1.0,
    scoring: Scoring | None = None,
) -> Relevance:
    """Compute the instruction relevance score S^I = min-max(μ·S^G + (1−μ)·S^D) of N visual tokens (Eq. 2 to 10).

    Without any words (M = 0), the pooled text alone decides, as with μ = 1, and `notes` says so. If there is no pooled
    text either, the question is empty: all tokens have the same score.

    Args:
        visual: N×c, the visual tokens in the embedding space of the text.
        text: M×c, the words of the question, or one such matrix per segment. Segments have equal weight.
        pooled: c, the embedding of the whole question, or one vector per segment.
        blocks: The range of token indices of each block (crop, frame). Softmax, entropy, filter and weights are
            computed for each block separately, as the batch dimension of Algorithm 1 implies. None for one block.
        sign: Factor on the cosines, +1 or −1. −1, as in the paper and its release, where raw cosines are highest on the
            background.
        scoring: Settings. None for the defaults.

    Returns:
        The score and all intermediate results, without those of stage 2.

    Raises:
        ValueError: If there is no text, the pooled text is missing although μ > 0, or an argument is out of range.
    """
    scoring = Scoring() if scoring is None else scoring
    if sign not in (-1, 1):
        raise ValueError(f"sign must be +1 or −1, got {sign}")

    visual = unit_rows(visual, "visual")
    blocks = [slice(0, len(visual))] if blocks is None else blocks
    segments = [unit_rows(segment.to(visual), "text") for segment in _as_segments(text, 2)]
    pooled_segments = [unit_rows(vector.to(visual)[None], "pooled")[0] for vector in _as_segments(pooled, 1)]
    for what, values in [("text", each) for each in segments] + [("pooled", each) for each in pooled_segments]:
        if values.shape[-1] != visual.shape[1]:
            raise ValueError(f"{what} has {values.shape[-1]} channels, but visual has {visual.shape[1]}")
    segments = [segment for segment in segments if len(segment)]

    notes, mu = [], scoring.mu
    is_empty = not segments and not pooled_segments
    if is_empty and text is None:
        raise ValueError("there is no text: give the words of the question (text), its pooled vector, or both")
    if is_empty:
        notes.append("the question is empty")
    elif not segments and mu < 1:
        notes.append(f"the question has no words of its own: the pooled text decides alone (μ = 1 instead of {mu})")
        mu = 1.0
    if not pooled_segments and mu > 0 and not is_empty:
        raise ValueError(f"mu={mu} weighs the pooled text, but pooled is missing: give it, or set mu=0")

    maps = [sign * (segment @ visual.T) for segment in segments]
    guidance = [[_dense_guidance(similarity[:, block], scoring) for block in blocks] for similarity in maps]
    similarity = torch.cat(maps) if maps else visual.new_zeros(0, len(visual))
    weights = _concatenate([torch.cat([each.weights for each in row], dim=1) for row in guidance], similarity)
    dense_score = (weights * similarity).sum(0) / len(guidance) if guidance else None
    global_score = None
    if pooled_segments:
        global_score = sign * torch.stack([visual @ vector for vector in pooled_segments]).mean(dim=0)
    fused = visual.new_zeros(len(visual))
    if global_score is not None:
        fused = fused + mu * global_score
    if dense_score is not None:
        fused = fused + (1 - mu) * dense_score

    normalized_blocks = [slice(0, len(visual))] if scoring.normalised_over == "image" else blocks
    if any(is_constant(fused[block]) for block in normalized_blocks):
        notes.append("the text does not tell the tokens apart: they are covered evenly")
    no_words = visual.new_zeros(0, len(blocks))

    def per_word(name: str) -> Tensor:
        columns = [torch.stack([getattr(each, name) for each in row], dim=1) for row in guidance]
        return _concatenate(columns, no_words)

    return Relevance(
        similarity=similarity,
        entropy=per_word("entropy"),
        dispersion=per_word("dispersion"),
        kept=per_word("kept").bool(),
        weights=weights,
        dense_score=dense_score,
        global_score=global_score,
        fused=fused,
        score=torch.cat([scoring.normalize(fused[block]) for block in normalized_blocks]),
        notes=tuple(notes),
    )


def _concatenate(parts: list[Tensor], empty: Tensor) -> Tensor:
    return torch.cat(parts) if parts else empty


def _as_segments(value: Tensor | Sequence[Tensor] | None, ndim: int) -> list[Tensor]:
    """Turn one tensor of `ndim` dimensions, a stack of them or a sequence of them into a list."""
    if value is None:
        return []
    segments = [value] if isinstance(value, Tensor) and value.ndim == ndim else list(value)
    for segment in segments:
        if segment.ndim != ndim:
            wanted = "M×c" if ndim == 2 else "a vector of c"
            raise ValueError(f"each segment of the text must be {wanted}, got shape {tuple(segment.shape)}")
    return segments
