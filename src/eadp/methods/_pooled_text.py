"""Helper of the methods that compare each token with one vector for the whole question."""

from __future__ import annotations

import torch
from torch import Tensor

from eadp.core import TextGuide, VisualTokens
from eadp.core.similarity import unit_rows
from eadp.core.trace import part


@part("relevance")
def pooled_similarity(method: str, tokens: VisualTokens, text: TextGuide | None, cosine: bool) -> Tensor:
    """Return N, sign · ⟨v_j, pooled⟩, averaged over the segments of a long question.

    Args:
        method: The method's name, for error messages.
        tokens: The visual tokens; v_j are the rows of `aligned`.
        text: The question.
        cosine: Whether both sides are scaled to unit length first.
    """
    if text is None or text.pooled is None:
        raise ValueError(f"{method} needs the question as one vector: give a TextGuide with `pooled`")
    if tokens.aligned is None:
        raise ValueError(f"{method} needs `aligned`: the visual tokens in the space of the text")
    pooled = text.pooled if isinstance(text.pooled, Tensor) else torch.stack(list(text.pooled))
    pooled = pooled.to(tokens.aligned.device).reshape(-1, pooled.shape[-1])
    if cosine:
        return text.sign * (unit_rows(tokens.aligned, "aligned") @ unit_rows(pooled, "pooled").T).mean(1)
    return text.sign * (tokens.aligned.float() @ pooled.float().T).mean(1)
