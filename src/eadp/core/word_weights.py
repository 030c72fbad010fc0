"""Which words of the question count, and how much: dispersion, filter and weights (Eq. 4 to 7), in all blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eadp.core import checks
from eadp.core.block_layout import BlockLayout
from eadp.core.ties import WORD_TIE_MARGIN

RELEASE_EPSILON = 1e-6
"""Added by EADP's release to denominators in the ablated aggregations."""

WORD_COUNTS = ("quantile", "floor")

VALUES_AT_ONCE = 2**24
"""How many values of M×N maps are computed at once. Long questions about large images are divided into some words at a
time, so that only what is kept of them takes M×N values."""


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

    def split(self) -> list[WordMaps]:
        """Divide the words into parts of at most `VALUES_AT_ONCE` values, or of one word."""
        blocks, words, longest = self.similarity.shape
        at_once = max(1, VALUES_AT_ONCE // max(1, blocks * longest))
        if words <= at_once:
            return [self]
        return [WordMaps(part, self.layout) for part in self.similarity.split(at_once, dim=1)]

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


def measure_dispersion(name: str, maps: WordMaps, tau: float) -> Tensor:
    """Compute a dispersion of each word, some words at a time: B×M."""
    parts = [DISPERSIONS[name](part, tau) for part in maps.split()]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def sum_words(weights: Tensor, similarity: Tensor) -> Tensor:
    """Sum the maps of M words with their weights, both M×N, some words at a time: N."""
    words, tokens = similarity.shape
    at_once = max(1, VALUES_AT_ONCE // max(1, tokens))
    if words <= at_once:
        return (weights * similarity).sum(0)
    parts = zip(weights.split(at_once), similarity.split(at_once), strict=True)
    return torch.stack([(one * two).sum(0) for one, two in parts]).sum(0)


def count_words(words: int, q: float, word_count: str = "quantile") -> int:
    """Return how many of `words` words the filter keeps, ties aside; see `filter_words`."""
    if word_count == "floor":
        return max(1, math.floor(q * words))
    # Rounding q·M first makes 0.3 · 10 equal to 3: in binary it is slightly more, and its ceiling would be 4.
    return max(1, math.ceil(round(q * words, 9)))


def filter_words(dispersion: Tensor, q: float, word_count: str = "quantile") -> Tensor:
    """Find the words of lowest dispersion in each block: T' = {i : h_i ≤ Q_q(H)} (Eq. 6).

    Args:
        dispersion: B×M.
        q: Share of words to keep, in (0, 1].
        word_count: `quantile` keeps the ⌈q·M⌉ lowest and all that tie with the last of them, as in the paper; a word
            ties if it is higher by at most `WORD_TIE_MARGIN`. `floor` keeps exactly max(1, ⌊q·M⌋), the first of equal
            ones, as in the release.

    Returns:
        B×M, true for words that are kept.
    """
    keep = count_words(dispersion.shape[1], q, word_count)
    if word_count == "floor":
        lowest = dispersion.sort(dim=1, stable=True).indices[:, :keep]
        return torch.zeros_like(dispersion, dtype=torch.bool).scatter_(1, lowest, True)
    last = dispersion.kthvalue(keep, dim=1, keepdim=True).values
    return dispersion <= last + WORD_TIE_MARGIN * last.abs()


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
