"""Helper of the methods that compare each token with one vector for the whole question."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from eadp.core import Scoring, TextGuide, VisualTokens, relevance_of_images
from eadp.core.block_layout import BlockLayout
from eadp.core.scoring import CONSTANT_RANGE
from eadp.core.similarity import unit_rows
from eadp.core.trace import part
from eadp.methods._blank import EMPTY_QUESTION
from eadp.methods._on_device import concatenate

POOLED_EPSILONS = (1e-6, 0.0)
"""What CDPruner's release adds to the numerator and the denominator of its min-max."""


@dataclass(frozen=True)
class PooledSimilarity:
    """How similar each token is to the whole question.

    Attributes:
        values: N; all 0 if the question is empty.
        is_constant: Whether the values are the same for all tokens, up to rounding.
        is_empty: Whether the question is empty.
    """

    values: Tensor
    is_constant: bool
    is_empty: bool = False

    def notes(self, consequence: str) -> tuple[str, ...]:
        """Return the notes of a selection: none, unless the text does not tell the tokens apart.

        Args:
            consequence: What the method then does.
        """
        empty = (EMPTY_QUESTION,) if self.is_empty else ()
        return (*empty, f"the text does not tell the tokens apart: {consequence}") if self.is_constant else ()


@part("relevance")
def pooled_similarity(method: str, tokens: VisualTokens, text: TextGuide | None, cosine: bool) -> PooledSimilarity:
    """Return sign · ⟨v_j, pooled⟩ of each token, averaged over the segments of a long question.

    Args:
        method: The method's name, for error messages.
        tokens: The visual tokens; v_j are the rows of `aligned`.
        text: The question. One with 0 words and without a pooled vector is empty.
        cosine: Whether both sides are scaled to unit length first.
    """
    aligned, text = _require(method, tokens, text)
    if text.pooled is None:
        return PooledSimilarity(aligned.new_zeros(len(tokens), dtype=torch.float32), True, is_empty=True)
    pooled = text.pooled if isinstance(text.pooled, Tensor) else torch.stack(list(text.pooled))
    pooled = pooled.to(aligned.device).reshape(-1, pooled.shape[-1])
    if cosine:
        visual, pooled = unit_rows(aligned, "aligned"), unit_rows(pooled, "pooled")
    else:
        visual, pooled = aligned.float(), pooled.float()
    values = (visual @ pooled.T).mean(1)
    # Products of longer vectors have larger rounding errors.
    scale = visual.norm(dim=1).max() * pooled.norm(dim=1).max()
    is_constant = bool(values.max() - values.min() <= CONSTANT_RANGE * scale)
    return PooledSimilarity(text.sign * values, is_constant)


@dataclass(frozen=True)
class _PooledScoring(Scoring):
    """Scores by the whole question alone, scaled as `CDPruner` does."""

    mu: float = 1.0
    normalised_over: str = "block"

    @property
    def epsilons(self) -> tuple[float, float]:
        return POOLED_EPSILONS


@part("relevance")
def pooled_relevance(
    method: str, batch: Sequence[VisualTokens], texts: Sequence[TextGuide | None], scales: Sequence[Sequence[slice]]
) -> tuple[Tensor, Tensor]:
    """Return sign · cos(v_j, pooled) of each token of several images on a device, scaled by min-max, without waiting.

    What is not finite leaves NaN. An empty question is one without a pooled vector: its cosines are 0.

    Args:
        method: The method's name, for error messages.
        batch: The images.
        texts: The question of each image.
        scales: The ranges of tokens of each image that are scaled by themselves.

    Returns:
        N, the scaled cosines of all images, 1 where a map is constant; and one boolean per image, whether its cosines
        are the same everywhere.
    """
    given = [_require(method, tokens, text) for tokens, text in zip(batch, texts, strict=True)]
    asked = [number for number, (_, text) in enumerate(given) if text.pooled is not None]
    scored = dict(
        zip(
            asked,
            relevance_of_images(
                [given[number][0] for number in asked],
                # Without words, only the pooled text counts.
                [replace(given[number][1], tokens=[]) for number in asked],
                blocks=[scales[number] for number in asked],
                scoring=_PooledScoring(),
            ),
            strict=True,
        )
    )
    sizes, device = [len(tokens) for tokens in batch], given[0][0].device
    cosines, values = ([getattr(scored[number], name) for number in asked] for name in ("fused", "score"))
    if len(asked) < len(batch):
        # All empty questions share their cosines.
        empty = torch.zeros(max(sizes), device=device)
        ones = empty + 1
        filled = [scored.get(number) for number in range(len(batch))]
        cosines = [empty[:size] if each is None else each.fused for each, size in zip(filled, sizes, strict=True)]
        values = [ones[:size] if each is None else each.score for each, size in zip(filled, sizes, strict=True)]
    elif all(len(each) == 1 for each in scales):
        flags = [cast(Tensor, each.is_constant) for each in scored.values()]
        return concatenate(values), flags[0][None] if len(flags) == 1 else torch.stack(flags)
    return concatenate(values), _are_constant(concatenate(cosines), BlockLayout.following(sizes, device))


def _are_constant(cosines: Tensor, images: BlockLayout) -> Tensor:
    """Return whether the cosines of each image are the same everywhere."""
    maps = images.stack(cosines)
    if images.is_regular:
        return maps.amax(1) - maps.amin(1) <= CONSTANT_RANGE
    low, high = maps.where(images.is_token, math.inf).amin(1), maps.where(images.is_token, -math.inf).amax(1)
    return high - low <= CONSTANT_RANGE


def _require(method: str, tokens: VisualTokens, text: TextGuide | None) -> tuple[Tensor, TextGuide]:
    """Return N×c, the tokens in the space of the text, and the text, which is empty or has a pooled vector."""
    is_empty = text is not None and text.pooled is None and text.tokens is not None and not len(text.tokens)
    if text is None or (text.pooled is None and not is_empty):
        raise ValueError(f"{method} needs the question as one vector: give a TextGuide with `pooled`")
    if tokens.aligned is None:
        raise ValueError(f"{method} needs `aligned`: the visual tokens in the space of the text")
    return tokens.aligned, text
