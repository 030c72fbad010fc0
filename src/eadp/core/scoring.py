"""The settings of stage 1, and the min-max normalization of its scores (Eq. 10)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from eadp.core import checks
from eadp.core.word_weights import DISPERSIONS, WORD_COUNTS, Aggregation

EPSILON = 1e-8
"""ε in the denominator of the min-max normalization (Eq. 10)."""

CONSTANT_RANGE = 1e-6
"""A map whose values span no more than this counts as constant: the differences are rounding."""

NORMALISED_OVER = ("image", "block")


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
    aggregation: Aggregation = field(default_factory=Aggregation)
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

    @property
    def epsilons(self) -> tuple[float, float]:
        """What is added to the numerator and the denominator of the min-max normalization."""
        return self.lift, self.lift or EPSILON

    def normalize(self, score: Tensor, is_token: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Apply `min_max` with these settings."""
        return min_max(score, *self.epsilons, is_token)
