"""Stage 1: dispersion-aware dense scoring and fusion (Eq. 2 to 10).

Each visual token gets an instruction relevance score: a weighted sum of its similarity to the whole question (global
guidance) and to the single words (dense guidance). Words whose similarity is dispersed over the whole image are noise
and are filtered out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from eadp.core import checks
from eadp.core.block_layout import BlockLayout
from eadp.core.similarity import scale_rows, unit_rows
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


@dataclass(frozen=True)
class WordMaps:
    """The similarity of M words to the tokens of B blocks, padded to L tokens each.

    Attributes:
        similarity: B×M×L, c (Eq. 3).
        layout: Where the blocks lie among the tokens.
    """

    similarity: Tensor
    layout: BlockLayout

    @classmethod
    def of(cls, similarity: Tensor, layout: BlockLayout) -> WordMaps:
        """Divide the similarity of M words to all N tokens (M×N) into blocks."""
        return cls(layout.stack(similarity.T).mT, layout)

    @property
    def is_token(self) -> Tensor | None:
        """B×1×L, false where a block is padded; None if no block is."""
        return None if self.layout.is_regular else self.layout.is_token[:, None]


# ── Dispersion: one value per block and word; larger is more dispersed ────────────────────────────────────────────────


def word_distribution(maps: WordMaps, tau: float) -> Tensor:
    """Compute each word's distribution over the tokens of each block: p_ij = softmax_j(c_ij / τ) (Eq. 4).

    Args:
        maps: c of M words in B blocks.
        tau: Temperature τ.

    Returns:
        B×M×L, 0 where a block is padded.
    """
    logits = maps.similarity / tau
    return torch.softmax(logits if maps.is_token is None else logits.where(maps.is_token, -math.inf), dim=2)


def entropy(maps: WordMaps, tau: float) -> Tensor:
    """Compute the entropy of each word: h_i = −Σ_j p_ij log p_ij (Eq. 5).

    Args:
        maps: c of M words in B blocks.
        tau: Temperature τ of the distribution p.

    Returns:
        B×M.
    """
    return torch.special.entr(word_distribution(maps, tau)).sum(dim=2)


def central_mass(maps: WordMaps, tau: float, cells: float = 0.05) -> Tensor:
    """Compute the probability mass outside the most probable tokens (central mass ratio of the ablation).

    Args:
        maps: c of M words in B blocks.
        tau: Temperature τ of the distribution p.
        cells: Share of a block's tokens that count as the most probable ones.

    Returns:
        B×M.
    """
    counts = [max(1, math.ceil(cells * size)) for size in maps.layout.sizes]
    largest = word_distribution(maps, tau).topk(max(counts), dim=2).values
    if len(set(counts)) > 1:
        rank = torch.arange(max(counts), device=largest.device)
        largest = largest * (rank < rank.new_tensor(counts)[:, None])[:, None]
    return 1 - largest.sum(dim=2)


def variance(maps: WordMaps, tau: float) -> Tensor:
    """Compute −Var_j(c_ij): a dispersed map varies least (variance of the ablation).

    Args:
        maps: c of M words in B blocks.
        tau: Not used.

    Returns:
        B×M.
    """
    if maps.is_token is None:
        return -maps.similarity.var(dim=2, correction=0)
    sizes = maps.layout.sizes_on_device[:, None]
    mean = (maps.similarity * maps.is_token).sum(dim=2) / sizes
    deviation = (maps.similarity - mean[:, :, None]) * maps.is_token
    return -(deviation**2).sum(dim=2) / sizes


DISPERSIONS: dict[str, Callable[[WordMaps, float], Tensor]] = {
    "entropy": entropy,
    "central_mass": central_mass,
    "variance": variance,
}
"""The dispersion measures by name."""


def filter_words(dispersion: Tensor, q: float, word_count: str = "quantile") -> Tensor:
    """Find the words of lowest dispersion in each block: T' = {i : h_i ≤ Q_q(H)} (Eq. 6).

    Args:
        dispersion: B×M.
        q: Share of words to keep, in (0, 1].
        word_count: `quantile` keeps the ⌈q·M⌉ lowest and all that tie with the last of them, as in the paper. `floor`
            keeps exactly max(1, ⌊q·M⌋), the first of equal ones, as in the release.

    Returns:
        B×M, true for words that are kept.
    """
    words = dispersion.shape[1]
    if word_count == "floor":
        lowest = dispersion.sort(dim=1, stable=True).indices[:, : max(1, math.floor(q * words))]
        return torch.zeros_like(dispersion, dtype=torch.bool).scatter_(1, lowest, True)
    # Rounding q·M first makes 0.3 · 10 equal to 3: in binary it is slightly more, and its ceiling would be 4.
    keep = max(1, math.ceil(round(q * words, 9)))
    return dispersion <= dispersion.kthvalue(keep, dim=1, keepdim=True).values


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

    def weights(self, similarity: Tensor, dispersion: Tensor, kept: Tensor) -> Tensor:
        """Compute the weights α of the words in each block.

        Args:
            similarity: B×M×L, c.
            dispersion: B×M.
            kept: B×M, true for the words that passed the filter.

        Returns:
            B×M×L, 0 for words that were filtered out. B×M×1 for aggregations that weight the words the same for each
            token.
        """
        return AGGREGATIONS[self.name](similarity, dispersion[:, :, None], kept[:, :, None], self)


def _softmax_of_kept(logits: Tensor, kept: Tensor) -> Tensor:
    """Softmax over the kept words; 0 for the others."""
    return torch.softmax(logits.where(kept, -math.inf), dim=1)


def neg_entropy(similarity: Tensor, dispersion: Tensor, kept: Tensor, settings: Aggregation) -> Tensor:
    """α_i = softmax_i(−h_i / γ) (Eq. 7): the paper's method, style 4 of its ablation."""
    return _softmax_of_kept(-dispersion / settings.gamma, kept)


def inverse_entropy(similarity: Tensor, dispersion: Tensor, kept: Tensor, settings: Aggregation) -> Tensor:
    """α_ij = softmax_i(c_ij / (γ·(h_i + 1e-6))): weighted inverse entropy, style 1 of the ablation.

    Each token has its own weights. The paper's formula, c_ij/h_i * γ, can also be read as c_ij·γ / h_i; this is what
    the release computes.
    """
    return _softmax_of_kept(similarity / _entropy_temperature(dispersion, settings), kept)


def inverse_entropy_flat(similarity: Tensor, dispersion: Tensor, kept: Tensor, settings: Aggregation) -> Tensor:
    """α_i = softmax_i(1 / (γ·(h_i + 1e-6))): style 1 of the ablation without the similarity."""
    return _softmax_of_kept(1 / _entropy_temperature(dispersion, settings), kept)


def _entropy_temperature(dispersion: Tensor, settings: Aggregation) -> Tensor:
    return settings.gamma * (dispersion + RELEASE_EPSILON)


def topk(similarity: Tensor, dispersion: Tensor, kept: Tensor, settings: Aggregation) -> Tensor:
    """α_ij = 1/k for the k kept words most similar to token j, otherwise 0: style 2 of the ablation."""
    chosen = similarity.where(kept, -math.inf).topk(min(settings.top_words, similarity.shape[1]), dim=1).indices
    share = 1 / kept.sum(dim=1, keepdim=True).clamp_max(settings.top_words).to(similarity)
    return torch.zeros_like(similarity).scatter_(1, chosen, 1.0) * kept * share


def gated(similarity: Tensor, dispersion: Tensor, kept: Tensor, settings: Aggregation) -> Tensor:
    """α_i = g_i / (Σ_i g_i + 1e-6) with g_i = σ(θ·(mean(h) − h_i)): style 3 of the ablation, as released."""
    gate = torch.sigmoid(settings.theta * (_mean_of_kept(dispersion, kept) - dispersion)) * kept
    return gate / (gate.sum(dim=1, keepdim=True) + RELEASE_EPSILON)


def gated_softmax(similarity: Tensor, dispersion: Tensor, kept: Tensor, settings: Aggregation) -> Tensor:
    """α_i = softmax_i(θ·(mean(h) − h_i)): style 3 of the ablation, as the paper writes it.

    The mean cancels in the softmax, so this equals `neg_entropy` with γ = 1/θ.
    """
    return _softmax_of_kept(settings.theta * (_mean_of_kept(dispersion, kept) - dispersion), kept)


def _mean_of_kept(dispersion: Tensor, kept: Tensor) -> Tensor:
    return (dispersion * kept).sum(dim=1, keepdim=True) / kept.sum(dim=1, keepdim=True)


AGGREGATIONS: dict[str, Callable[[Tensor, Tensor, Tensor, Aggregation], Tensor]] = {
    "neg_entropy": neg_entropy,
    "inverse_entropy": inverse_entropy,
    "inverse_entropy_flat": inverse_entropy_flat,
    "topk": topk,
    "gated": gated,
    "gated_softmax": gated_softmax,
}
"""The aggregations by name. Each takes the similarity (B×M×L), dispersion and filter (B×M×1), and the settings."""


# ── The score ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def min_max(
    score: Tensor,
    numerator_epsilon: float = 0.0,
    denominator_epsilon: float = EPSILON,
    is_token: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Normalize maps: (s − min + ε₁) / (max − min + ε₂) (Eq. 10, where ε₁ = 0). A constant map becomes all 1.

    Args:
        score: N, or B×N for B maps.
        numerator_epsilon: ε₁.
        denominator_epsilon: ε₂.
        is_token: The same shape, false where a map is padded. None if none is.

    Returns:
        The normalized maps, and whether any of them has the same value everywhere, up to rounding: one boolean.
    """
    low = (score if is_token is None else score.where(is_token, math.inf)).amin(dim=-1, keepdim=True)
    high = (score if is_token is None else score.where(is_token, -math.inf)).amax(dim=-1, keepdim=True)
    span = high - low
    is_constant = span <= CONSTANT_RANGE
    above = score - low
    if numerator_epsilon:
        above = above + numerator_epsilon
    return (above / (span + denominator_epsilon)).masked_fill(is_constant, 1), is_constant.any()


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
        if self.dispersion == "variance" and self.aggregation.name.startswith("inverse_entropy"):
            raise ValueError(
                f"aggregation {self.aggregation.name!r} divides by the dispersion, which must not be negative, but "
                "'variance' is; use it with dispersion 'entropy' or 'central_mass'"
            )

    def normalize(self, score: Tensor, is_token: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Apply `min_max` with these settings."""
        return min_max(score, self.lift, self.lift or EPSILON, is_token)


@dataclass(frozen=True)
class _DenseGuidance:
    """Filter and weights of one segment's M words: M×B, and M×N for the weights."""

    entropy: Tensor
    dispersion: Tensor
    kept: Tensor
    weights: Tensor


def _dense_guidance(similarity: Tensor, layout: BlockLayout, scoring: Scoring) -> _DenseGuidance:
    """Filter and weight M words (Eq. 4 to 7) by their M×N similarity to the tokens, in all blocks at once."""
    maps = WordMaps.of(similarity, layout)
    h = entropy(maps, scoring.tau)
    dispersion = h if scoring.dispersion == "entropy" else DISPERSIONS[scoring.dispersion](maps, scoring.tau)
    kept = filter_words(dispersion, scoring.q, scoring.word_count)
    weights = scoring.aggregation.weights(maps.similarity, dispersion, kept).expand_as(maps.similarity)
    return _DenseGuidance(h.T, dispersion.T, kept.T, layout.unstack(weights.mT).T)


@part("relevance")
def relevance(
    visual: Tensor,
    text: Tensor | Sequence[Tensor] | None,
    pooled: Tensor | Sequence[Tensor] | None,
    *,
    blocks: Sequence[slice] | None = None,
    sign: float = -1.0,
    scoring: Scoring | None = None,
    wait: bool = True,
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
        wait: Whether to read back if the input was valid and the map constant. Without, nothing waits for the device:
            input that is not finite leaves NaN in the score, and `is_constant` takes the place of a note.

    Returns:
        The score and all intermediate results, without those of stage 2.

    Raises:
        ValueError: If there is no text, the pooled text is missing although μ > 0, or an argument is out of range.
    """
    scoring = Scoring() if scoring is None else scoring
    if sign not in (-1, 1):
        raise ValueError(f"sign must be +1 or −1, got {sign}")

    given = [("visual", visual)]
    visual = scale_rows(visual, "visual")
    layout = BlockLayout.of([slice(0, len(visual))] if blocks is None else blocks, visual.device)
    given += [("text", segment.to(visual)) for segment in _as_segments(text, 2) if len(segment)]
    segments = len(given) - 1
    given += [("pooled", vector.to(visual)[None]) for vector in _as_segments(pooled, 1)]
    pooled_segments = len(given) - 1 - segments
    for what, values in given[1:]:
        if values.shape[1] != visual.shape[1]:
            raise ValueError(f"{what} has {values.shape[1]} channels, but visual has {visual.shape[1]}")

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

    # One product for all words and pooled vectors.
    texts = [values for _, values in given[1:]]
    cosines = visual.new_empty(0, len(visual))
    if texts:
        cosines = sign * (scale_rows(torch.cat(texts), "text") @ visual.T)
    words = sum(len(values) for _, values in given[1 : 1 + segments])
    similarity = cosines[:words]
    maps = similarity.split([len(values) for _, values in given[1 : 1 + segments]])
    guidance = [_dense_guidance(each, layout, scoring) for each in maps] if words else []
    weights = _concatenate([each.weights for each in guidance], similarity)
    dense_score = _average((weights * similarity).sum(0), segments) if guidance else None
    global_score = _average(cosines[words:].sum(0), pooled_segments) if pooled_segments else None
    if is_empty:
        fused = visual.new_zeros(len(visual))
    elif dense_score is None or global_score is None:
        only = cast(Tensor, global_score if dense_score is None else dense_score)
        fused = (mu if dense_score is None else 1 - mu) * only
    else:
        fused = torch.lerp(dense_score, global_score, mu)

    if scoring.normalised_over == "image":
        score, constant = scoring.normalize(fused)
    else:
        is_token = None if layout.is_regular else layout.is_token
        score, constant = scoring.normalize(layout.stack(fused), is_token)
        score = layout.unstack(score)
    if wait:
        is_finite, covers_evenly = torch.stack([fused.isfinite().all(), constant]).tolist()
        if not is_finite:
            for what, values in given:
                unit_rows(values, what)
        if covers_evenly:
            some = scoring.normalised_over == "block" and len(layout) > 1
            where, what = ("of some blocks ", "those blocks") if some else ("", "they")
            notes.append(f"the text does not tell the tokens {where}apart: {what} are covered evenly")
    no_words = visual.new_empty(0, len(layout))
    return Relevance(
        similarity=similarity,
        entropy=_concatenate([each.entropy for each in guidance], no_words),
        dispersion=_concatenate([each.dispersion for each in guidance], no_words),
        kept=_concatenate([each.kept for each in guidance], no_words.new_empty(no_words.shape, dtype=torch.bool)),
        weights=weights,
        dense_score=dense_score,
        global_score=global_score,
        fused=fused,
        score=score,
        is_constant=constant,
        notes=tuple(notes),
    )


def _concatenate(parts: list[Tensor], empty: Tensor) -> Tensor:
    """Concatenate segments; one alone needs no copy."""
    return (parts[0] if len(parts) == 1 else torch.cat(parts)) if parts else empty


def _average(total: Tensor, segments: int) -> Tensor:
    """Divide a sum over segments by their number."""
    return total if segments == 1 else total / segments


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
