"""Stage 1: how relevant each visual token is to the question, by the words that point somewhere."""

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
"""ε below the fraction of the min-max normalisation."""

FLAT = 1e-6
"""A fused map that spans less than this is constant: what is left is rounding."""

HELD = 1e-6
"""What keeps an entropy of 0 from dividing by it."""

WORD_COUNTS = ("quantile", "floor")
NORMALISED_OVER = ("image", "block")


# ── Dispersion: one value a word, larger is more dispersed ────────────────────────────────────────────────────────────


def distribution(similarity: Tensor, tau: float) -> Tensor:
    """p_ij = softmax_j(c_ij / τ). M×N → M×N."""
    return torch.softmax(similarity / tau, dim=1)


def entropy(similarity: Tensor, tau: float) -> Tensor:
    """h_i = −Σ_j p_ij log p_ij. M×N → M."""
    return torch.special.entr(distribution(similarity, tau)).sum(dim=1)


def central_mass(similarity: Tensor, tau: float, cells: float = 0.05) -> Tensor:
    """1 − the probability mass in the largest few cells (`cells`, a share of N). M×N → M."""
    top = max(1, math.ceil(cells * similarity.shape[1]))
    return 1 - distribution(similarity, tau).topk(top, dim=1).values.sum(dim=1)


def variance(similarity: Tensor, tau: float) -> Tensor:
    """−Var_j(c_ij): an even map varies least. M×N → M. τ plays no part."""
    return -similarity.var(dim=1, correction=0)


DISPERSIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "entropy": entropy,
    "central_mass": central_mass,
    "variance": variance,
}


def low_dispersion(dispersion: Tensor, q: float, count: str = "quantile") -> Tensor:
    """M, true for the words that stay: those of lowest dispersion.

    quantile: T' = {i : h_i ≤ Q_q(H)}, the ⌈q·M⌉ lowest and ties with the last of them (paper).
    floor:    exactly max(1, ⌊q·M⌋), the first of equal ones (release).
    """
    words = len(dispersion)
    if count == "floor":
        kept = torch.zeros_like(dispersion, dtype=torch.bool)
        kept[dispersion.sort(stable=True).indices[: max(1, math.floor(q * words))]] = True
        return kept
    # ⌈q·M⌉ of the decimal that was written: 0.3 · 10 is 3, whatever binary makes of it.
    keep = max(1, math.ceil(round(q * words, 9)))
    return dispersion <= dispersion.kthvalue(keep).values


# ── Aggregation: what each kept word weighs ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Aggregation:
    """How kept words become weights. gamma: γ; theta: θ of the gate; top_words: k of `topk`."""

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
        """k, or k×N where each token weighs the words by itself, from the k kept words."""
        return AGGREGATIONS[self.name](similarity, dispersion, self)


def neg_entropy(similarity: Tensor, dispersion: Tensor, how: Aggregation) -> Tensor:
    """α_i = softmax_i(−h_i / γ). The method's own (style 4 of the paper's ablation)."""
    return torch.softmax(-dispersion / how.gamma, dim=0)


def inverse_entropy(similarity: Tensor, dispersion: Tensor, how: Aggregation) -> Tensor:
    """α_ij = softmax_i(c_ij / (γ·(h_i + 1e-6))): each token weighs the words by itself (style 1). The paper's formula
    can be read as c_ij·γ / h_i; this is what its release computes."""
    return torch.softmax(similarity / _tempered(dispersion, how)[:, None], dim=0)


def inverse_entropy_flat(similarity: Tensor, dispersion: Tensor, how: Aggregation) -> Tensor:
    """α_i = softmax_i(1 / (γ·(h_i + 1e-6))): style 1 without the similarity."""
    return torch.softmax(1 / _tempered(dispersion, how), dim=0)


def _tempered(dispersion: Tensor, how: Aggregation) -> Tensor:
    if not (dispersion >= 0).all():
        raise ValueError(
            f"aggregation {how.name!r} divides by the dispersion, which must not be negative, but one word has "
            f"{dispersion.min().item():.3g}; use it with dispersion 'entropy' or 'central_mass'"
        )
    return how.gamma * (dispersion + HELD)


def topk(similarity: Tensor, dispersion: Tensor, how: Aggregation) -> Tensor:
    """In each token, the mean of its k highest scores among the kept words (style 2); weights of 1/k or 0."""
    k = min(how.top_words, len(similarity))
    chosen = similarity.topk(k, dim=0).indices
    return torch.zeros_like(similarity).scatter_(0, chosen, 1 / k)


def gated(similarity: Tensor, dispersion: Tensor, how: Aggregation) -> Tensor:
    """α_i = σ(θ·(mean(h) − h_i)) / Σ (style 3, as released)."""
    gate = torch.sigmoid(how.theta * (dispersion.mean() - dispersion))
    return gate / (gate.sum() + HELD)


def gated_softmax(similarity: Tensor, dispersion: Tensor, how: Aggregation) -> Tensor:
    """α_i = softmax_i(θ·(mean(h) − h_i)) (style 3, as the paper writes it). A softmax does not see the mean:
    `neg_entropy` with γ = 1/θ."""
    return torch.softmax(how.theta * (dispersion.mean() - dispersion), dim=0)


AGGREGATIONS: dict[str, Callable[[Tensor, Tensor, Aggregation], Tensor]] = {
    "neg_entropy": neg_entropy,
    "inverse_entropy": inverse_entropy,
    "inverse_entropy_flat": inverse_entropy_flat,
    "topk": topk,
    "gated": gated,
    "gated_softmax": gated_softmax,
}


# ── The score ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def min_max(score: Tensor, above: float = 0.0, below: float = EPSILON) -> Tensor:
    """(s − min + above) / (max − min + below), in [0, 1]. A map that says the same everywhere becomes all 1."""
    low, high = score.min(), score.max()
    if not high - low > FLAT:
        return torch.ones_like(score)
    return (score - low + above) / (high - low + below)


def is_flat(score: Tensor) -> bool:
    """Whether a map says the same everywhere."""
    return not bool(score.max() - score.min() > FLAT)


@dataclass(frozen=True)
class Scoring:
    """How stage 1 scores tokens.

    mu:          μ, weight of the pooled text against the single words.
    q:           share of the words that stay, lowest dispersion first; word_count: how that share is counted.
    tau:         τ, temperature of a word's distribution over the tokens.
    dispersion:  what the words are ranked by.
    aggregation: what the kept words weigh.
    normalised_over: the min-max is taken over all blocks of the image together, or over each by itself.
    lift:        added above and below the fraction of the min-max; 0: the paper's ε, below only.
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

    def normalised(self, score: Tensor) -> Tensor:
        return min_max(score, self.lift, self.lift or EPSILON)


@dataclass(frozen=True)
class _Dense:
    """The dense side of one segment of the prompt on one block."""

    entropy: Tensor
    dispersion: Tensor
    kept: Tensor
    weights: Tensor


def _dense(similarity: Tensor, how: Scoring) -> _Dense:
    """Which words of M count for the N tokens of a block, and how much: weights M×N, 0 for words that do not stay."""
    h = entropy(similarity, how.tau)
    dispersed = h if how.dispersion == "entropy" else DISPERSIONS[how.dispersion](similarity, how.tau)
    kept = low_dispersion(dispersed, how.q, how.word_count)
    alpha = how.aggregation.weights(similarity[kept], dispersed[kept])
    weights = torch.zeros_like(similarity)
    weights[kept] = alpha if alpha.ndim == 2 else alpha[:, None].expand(-1, similarity.shape[1])
    return _Dense(h, dispersed, kept, weights)


@part("relevance")
def relevance(
    visual: Tensor,
    text: Tensor | Sequence[Tensor] | None,
    pooled: Tensor | Sequence[Tensor] | None,
    *,
    blocks: Sequence[slice] | None = None,
    sign: float = -1.0,
    how: Scoring | None = None,
) -> Relevance:
    """S^I = min-max(μ·S^G + (1−μ)·S^D) of N visual tokens for one prompt.

    visual: N×c. text: M×c, or a list of M_s×c, one per segment. pooled: c, or a list of c, one per segment. Segments
    count alike.
    blocks: the rows of each block (crop, frame, image): softmax, entropy, filter and weights are each block's own, as
            the batch dimension of the paper's Algorithm 1 has it. None: all tokens are one block.
    With no words at all (M = 0) the pooled text alone decides, as with μ = 1, and `notes` says so.
    """
    how = Scoring() if how is None else how
    if sign not in (-1, 1):
        raise ValueError(f"sign must be +1 or −1, got {sign}")

    visual = unit_rows(visual, "visual")
    blocks = [slice(0, len(visual))] if blocks is None else blocks
    segments = [unit_rows(block.to(visual), "text") for block in _blocks(text, 2)]
    pools = [unit_rows(vector.to(visual)[None], "pooled")[0] for vector in _blocks(pooled, 1)]
    for what, block in [("text", block) for block in segments] + [("pooled", vector) for vector in pools]:
        if block.shape[-1] != visual.shape[1]:
            raise ValueError(f"{what} has {block.shape[-1]} channels, but visual has {visual.shape[1]}")
    segments = [block for block in segments if len(block)]

    notes, mu = [], how.mu
    if not segments and not pools:
        raise ValueError("there is no text: give the words of the question (text), its pooled vector, or both")
    if not segments and mu < 1:
        notes.append(f"the question has no words of its own: the pooled text decides alone (μ = 1 instead of {mu})")
        mu = 1.0
    if not pools and mu > 0:
        raise ValueError(f"mu={mu} weighs the pooled text, but pooled is missing: give it, or set mu=0")

    maps = [sign * (segment @ visual.T) for segment in segments]
    parts = [[_dense(similarity[:, block], how) for block in blocks] for similarity in maps]
    similarity = torch.cat(maps) if maps else visual.new_zeros(0, len(visual))
    weights = _stacked([torch.cat([part.weights for part in row], dim=1) for row in parts], similarity)
    dense_score = (weights * similarity).sum(0) / len(parts) if parts else None
    global_score = sign * torch.stack([visual @ vector for vector in pools]).mean(dim=0) if pools else None
    fused = visual.new_zeros(len(visual))
    if global_score is not None:
        fused = fused + mu * global_score
    if dense_score is not None:
        fused = fused + (1 - mu) * dense_score

    together = [slice(0, len(visual))] if how.normalised_over == "image" else blocks
    if any(is_flat(fused[part]) for part in together):
        notes.append("the text does not tell the tokens apart: they are covered evenly")
    none = visual.new_zeros(0, len(blocks))

    def per_word(name: str) -> Tensor:
        return _stacked([torch.stack([getattr(part, name) for part in row], dim=1) for row in parts], none)

    return Relevance(
        similarity=similarity,
        entropy=per_word("entropy"),
        dispersion=per_word("dispersion"),
        kept=per_word("kept").bool(),
        weights=weights,
        dense_score=dense_score,
        global_score=global_score,
        fused=fused,
        score=torch.cat([how.normalised(fused[part]) for part in together]),
        notes=tuple(notes),
    )


def _stacked(parts: list[Tensor], none: Tensor) -> Tensor:
    return torch.cat(parts) if parts else none


def _blocks(value: Tensor | Sequence[Tensor] | None, ndim: int) -> list[Tensor]:
    """One tensor or several, as a list; each must have `ndim` dimensions (a stack of them counts as several)."""
    if value is None:
        return []
    blocks = [value] if isinstance(value, Tensor) and value.ndim == ndim else list(value)
    for block in blocks:
        if block.ndim != ndim:
            wanted = "M×c" if ndim == 2 else "a vector of c"
            raise ValueError(f"each segment of the text must be {wanted}, got shape {tuple(block.shape)}")
    return blocks
