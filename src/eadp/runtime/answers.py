"""Answers that a model is trained on: they follow the prompt, and must not become part of its question."""

from __future__ import annotations

import torch
from torch import Tensor

from eadp.models.geometry import FamilyGeometry

NO_LABEL = -100
"""The label of a token that the loss leaves out."""


def answer_columns(geometry: FamilyGeometry, labels: Tensor | None, token_types: Tensor | None) -> Tensor | None:
    """Mark the columns that the model is trained to write.

    Args:
        geometry: The geometry of the family.
        labels: B×L, the labels of the call, if it has any.
        token_types: B×L, the token types of the call, which in some families mark answers.

    Returns:
        B×L; None where the call marks no answers.
    """
    if geometry.answer_type is not None and token_types is not None:
        return token_types == geometry.answer_type
    return None if labels is None else labels != NO_LABEL


def without_answer(geometry: FamilyGeometry, ids: Tensor, is_answer: Tensor) -> Tensor:
    """Cut the answer off a prompt. Where all text after the images is marked, the marks do not tell the answer apart.

    Args:
        geometry: The geometry of the family.
        ids: L, the prompt and its answer.
        is_answer: L, which of them are marked.

    Returns:
        The ids up to the last one that is not marked.
    """
    placeholders = torch.tensor([geometry.placeholder_id(modality) for modality in geometry.modalities])
    is_image = torch.isin(ids, placeholders)
    asked = (~is_image & ~is_answer).nonzero().flatten()
    images = is_image.nonzero().flatten()
    if not len(asked) or (len(images) and asked[-1] < images[-1]):
        return ids
    return ids[: int(asked[-1]) + 1]
