"""Helpers of the methods that compare each token with one vector for the whole question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from eadp.core import TextGuide, VisualTokens, relevance_of_images
from eadp.core.similarity import unit_rows
from eadp.core.trace import part
from eadp.methods._on_device import concatenate, is_on_device


@part("relevance")
def pooled_cosines(method: str, batch: Sequence[VisualTokens], texts: Sequence[TextGuide | None]) -> Tensor:
    """Return sign · cos(v_j, pooled) of the tokens of all images, averaged over the segments of a long question.

    On a device nothing waits: what is not finite leaves NaN.

    Args:
        method: The method's name, for error messages.
        batch: The images; v_j are the rows of `aligned`.
        texts: The question of each image.

    Returns:
        N, for the tokens of all images.
    """
    given = [_require(method, tokens, text) for tokens, text in zip(batch, texts, strict=True)]
    if is_on_device(batch):
        # Without words, only the pooled text counts.
        pooled = [replace(text, tokens=[]) for _, text in given]
        scored = relevance_of_images([aligned for aligned, _ in given], pooled)
        return concatenate([cast(Tensor, each.global_score) for each in scored])
    cosines = []
    for aligned, text in given:
        segments = _segments(text, aligned.device)
        cosines.append(text.sign * (unit_rows(aligned, "aligned") @ unit_rows(segments, "pooled").T).mean(1))
    return concatenate(cosines)


@part("relevance")
def pooled_products(method: str, tokens: VisualTokens, text: TextGuide | None) -> Tensor:
    """Return N, sign · ⟨v_j, pooled⟩, averaged over the segments of a long question."""
    aligned, text = _require(method, tokens, text)
    return text.sign * (aligned.float() @ _segments(text, aligned.device).float().T).mean(1)


def _require(method: str, tokens: VisualTokens, text: TextGuide | None) -> tuple[Tensor, TextGuide]:
    """Return N×c, the tokens in the space of the text, and the text, which has a pooled vector."""
    if text is None or text.pooled is None:
        raise ValueError(f"{method} needs the question as one vector: give a TextGuide with `pooled`")
    if tokens.aligned is None:
        raise ValueError(f"{method} needs `aligned`: the visual tokens in the space of the text")
    return tokens.aligned, text


def _segments(text: TextGuide, device: torch.device) -> Tensor:
    """Return S×c, the pooled vector of each segment."""
    pooled = text.pooled if isinstance(text.pooled, Tensor) else torch.stack(list(cast(Sequence[Tensor], text.pooled)))
    return pooled.to(device).reshape(-1, pooled.shape[-1])
