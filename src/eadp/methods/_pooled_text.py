"""Helper of the methods that compare each token with one vector for the whole question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from eadp.core import TextGuide, VisualTokens, relevance_of_images
from eadp.core.scoring import CONSTANT_RANGE
from eadp.core.similarity import unit_rows
from eadp.core.trace import part
from eadp.methods._blank import EMPTY_QUESTION


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


@part("relevance")
def pooled_cosines(method: str, batch: Sequence[VisualTokens], texts: Sequence[TextGuide | None]) -> list[Tensor]:
    """Return sign · cos(v_j, pooled) of each token of several images on a device, without waiting for it.

    What is not finite leaves NaN. An empty question is one without a pooled vector: it has cosines of 0.
    """
    given = [_require(method, tokens, text) for tokens, text in zip(batch, texts, strict=True)]
    # Without words, only the pooled text counts.
    asked = [(aligned, replace(text, tokens=[])) for aligned, text in given if text.pooled is not None]
    scored = iter(relevance_of_images([aligned for aligned, _ in asked], [text for _, text in asked]))
    return [
        aligned.new_zeros(len(aligned), dtype=torch.float32)
        if text.pooled is None
        else cast(Tensor, next(scored).global_score)
        for aligned, text in given
    ]


def _require(method: str, tokens: VisualTokens, text: TextGuide | None) -> tuple[Tensor, TextGuide]:
    """Return N×c, the tokens in the space of the text, and the text, which is empty or has a pooled vector."""
    is_empty = text is not None and text.pooled is None and text.tokens is not None and not len(text.tokens)
    if text is None or (text.pooled is None and not is_empty):
        raise ValueError(f"{method} needs the question as one vector: give a TextGuide with `pooled`")
    if tokens.aligned is None:
        raise ValueError(f"{method} needs `aligned`: the visual tokens in the space of the text")
    return tokens.aligned, text
