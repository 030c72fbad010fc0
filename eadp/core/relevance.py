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
"""ε of the min-max normalisation."""

FLAT = 1e-6
"""A fused map that spans less than this is constant: what is left is rounding."""


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


def low_dispersion(dispersion: Tensor, q: float) -> Tensor:
    """T' = {i : h_i ≤ Q_q(H)}: true for the ⌈q·M⌉ least dispersed words and for ties with the last of them."""
    # ⌈q·M⌉ of the decimal that was written: 0.3 · 10 is 3, whatever binary makes of it.
    keep = max(1, math.ceil(round(q * len(dispersion), 9)))
    return dispersion <= dispersion.kthvalue(keep).values


# ── Aggregation: what each kept word weighs ───────────────────────────────────────────────────────────────────────────


def neg_entropy(similarity: Tensor, dispersion: Tensor, gamma: float) -> Tensor:
    """α_i = softmax_i(−h_i / γ). M weights."""
    return torch.softmax(-dispersion / gamma, dim=0)


def inverse_entropy(similarity: Tensor, dispersion: Tensor, gamma: float) -> Tensor:
    """α_ij = softmax_i(c_ij / (h_i·γ)). M×N weights: each cell listens to its own words."""
    if not (dispersion > 0).all():
        raise ValueError(
            "aggregation 'inverse_entropy' divides by the dispersion, which must be above 0 for every kept word, "
            f"but one has {dispersion.min().item():.3g}; use it with dispersion 'entropy' or 'central_mass'"
        )
    return torch.softmax(similarity / (dispersion[:, None] * gamma), dim=0)


def topk(similarity: Tensor, dispersion: Tensor, gamma: float, words: int = 3) -> Tensor:
    """In each cell, the mean of its highest few scores among the kept words. M×N weights of 1/k or 0."""
    k = min(words, len(similarity))
    chosen = similarity.topk(k, dim=0).indices
    return torch.zeros_like(similarity).scatter_(0, chosen, 1 / k)


def gated(similarity: Tensor, dispersion: Tensor, gamma: float, theta: float = 1.0) -> Tensor:
    """α_i = softmax_i(θ·(mean(h) − h_i)). M weights. A softmax does not see the mean: `neg_entropy` with γ = 1/θ."""
    return torch.softmax(theta * (dispersion.mean() - dispersion), dim=0)


AGGREGATIONS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "neg_entropy": neg_entropy,
    "inverse_entropy": inverse_entropy,
    "topk": topk,
    "gated": gated,
}


# ── The score ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def min_max(score: Tensor) -> Tensor:
    """(s − min) / (max − min + ε), in [0, 1]. A map that says the same everywhere is an error."""
    low, high = score.min(), score.max()
    if not high - low > FLAT:
        raise ValueError(
            f"the relevance map is constant ({low.item():.6g} for all {len(score)} tokens): the text does not tell the "
            "tokens apart. Check that `aligned` and the text guide share a space, or use a method that needs no text"
        )
    return (score - low) / (high - low + EPSILON)


def check_settings(mu: float, q: float, tau: float, gamma: float, dispersion: str, aggregation: str) -> None:
    checks.unit_interval("mu", mu)
    checks.share("q", q)
    checks.positive("tau", tau)
    checks.positive("gamma", gamma)
    checks.known("dispersion", dispersion, DISPERSIONS)
    checks.known("aggregation", aggregation, AGGREGATIONS)


@dataclass(frozen=True)
class _Dense:
    """The dense side of one segment of the prompt."""

    similarity: Tensor
    entropy: Tensor
    dispersion: Tensor
    kept: Tensor
    weights: Tensor
    score: Tensor


def _dense(
    visual: Tensor, text: Tensor, *, q: float, tau: float, gamma: float, sign: float, dispersion: str, aggregation: str
) -> _Dense:
    """S^D of one segment from unit rows: s_j = Σ_{i∈T'} α_i c_ij."""
    similarity = sign * (text @ visual.T)
    h = entropy(similarity, tau)
    dispersed = h if dispersion == "entropy" else DISPERSIONS[dispersion](similarity, tau)
    kept = low_dispersion(dispersed, q)
    alpha = AGGREGATIONS[aggregation](similarity[kept], dispersed[kept], gamma)
    weights = similarity.new_zeros(len(text), *alpha.shape[1:])
    weights[kept] = alpha
    score = weights @ similarity if weights.ndim == 1 else (weights * similarity).sum(dim=0)
    return _Dense(similarity, h, dispersed, kept, weights, score)


@part("relevance")
def relevance(
    visual: Tensor,
    text: Tensor | Sequence[Tensor] | None,
    pooled: Tensor | Sequence[Tensor] | None,
    *,
    mu: float = 0.5,
    q: float = 0.5,
    tau: float = 0.01,
    gamma: float = 0.01,
    sign: float = -1.0,
    dispersion: str = "entropy",
    aggregation: str = "neg_entropy",
) -> Relevance:
    """S^I = min-max(μ·S^G + (1−μ)·S^D) of N visual tokens for one prompt.

    visual: N×c. text: M×c, or a list of M_s×c, one a segment. pooled: c, or a list of c, one a segment. Segments count
    alike.
    With no words at all (M = 0) the pooled text alone decides, as with μ = 1, and `notes` says so.
    """
    check_settings(mu, q, tau, gamma, dispersion, aggregation)
    if sign not in (-1, 1):
        raise ValueError(f"sign must be +1 or −1, got {sign}")

    visual = unit_rows(visual, "visual")
    segments = [unit_rows(block.to(visual), "text") for block in _blocks(text, 2)]
    pools = [unit_rows(vector.to(visual)[None], "pooled")[0] for vector in _blocks(pooled, 1)]
    for what, block in [("text", block) for block in segments] + [("pooled", vector) for vector in pools]:
        if block.shape[-1] != visual.shape[1]:
            raise ValueError(f"{what} has {block.shape[-1]} channels, but visual has {visual.shape[1]}")
    segments = [block for block in segments if len(block)]

    notes: tuple[str, ...] = ()
    if not segments and not pools:
        raise ValueError("there is no text: give the words of the question (text), its pooled vector, or both")
    if not segments and mu < 1:
        notes = (f"the question has no words of its own: the pooled text decides alone (μ = 1 instead of {mu})",)
        mu = 1.0
    if not pools and mu > 0:
        raise ValueError(f"mu={mu} weighs the pooled text, but pooled is missing: give it, or set mu=0")

    settings = {"q": q, "tau": tau, "gamma": gamma, "sign": sign, "dispersion": dispersion, "aggregation": aggregation}
    parts = [_dense(visual, block, **settings) for block in segments]  # type: ignore[arg-type]
    dense_score = torch.stack([part.score for part in parts]).mean(dim=0) if parts else None
    global_score = sign * torch.stack([visual @ vector for vector in pools]).mean(dim=0) if pools else None
    fused = visual.new_zeros(len(visual))
    if global_score is not None:
        fused = fused + mu * global_score
    if dense_score is not None:
        fused = fused + (1 - mu) * dense_score

    none = visual.new_zeros(0)
    return Relevance(
        similarity=torch.cat([part.similarity for part in parts]) if parts else visual.new_zeros(0, len(visual)),
        entropy=torch.cat([part.entropy for part in parts]) if parts else none,
        dispersion=torch.cat([part.dispersion for part in parts]) if parts else none,
        kept=torch.cat([part.kept for part in parts]) if parts else none.bool(),
        weights=torch.cat([part.weights for part in parts]) if parts else none,
        dense_score=dense_score,
        global_score=global_score,
        fused=fused,
        score=min_max(fused),
        notes=notes,
    )


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
