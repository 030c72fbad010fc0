"""EADP up to a coverage on a device: what stays is read back once, for all images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from eadp.core import FacilityLocationResult, Selection
from eadp.core.image_coverage import cover_images_by_coverage
from eadp.core.types import count_in_blocks
from eadp.methods._blank import ALIKE, even_tokens, one_represents_all
from eadp.methods._eadp_on_device import ScoredImages
from eadp.methods._on_device import NOT_FINITE, concatenate


def select_by_coverage(
    method: str, images: ScoredImages, coverage: float, limits: Sequence[int | None]
) -> list[Selection]:
    """Return one selection per image, with indices on the CPU: how many tokens stay is known only now.

    Args:
        method: The method's name.
        images: The scored images.
        coverage: The coverage to reach.
        limits: The most tokens of each image; None for no limit.

    Raises:
        ValueError: If the input for an image was not finite.
    """
    results, (is_finite, is_constant) = cover_images_by_coverage(
        images.rows, images.weights, images.layout, images.blocks, coverage, limits, *_flags(images)
    )
    selections, block = [], 0
    for number, result in enumerate(results):
        own = slice(block, block + images.blocks[number])
        block = own.stop
        if result is None or not all(is_finite[own]):
            raise ValueError(NOT_FINITE.format(method=method))
        selections.append(_selection(method, images, number, result, bool(is_constant[own.start])))
    return selections


def _flags(images: ScoredImages) -> tuple[Tensor, Tensor]:
    """Return for each block whether its scores are finite, and whether the map of its image is constant."""
    fused = images.layout.stack(concatenate([each.fused for each in images.scored]))
    constants = torch.stack([each.is_constant for each in images.scored if each.is_constant is not None])
    if len(images.layout) > len(constants):
        counts = torch.tensor(images.blocks)
        constants = constants[torch.arange(len(counts)).repeat_interleave(counts).to(constants.device)]
    return fused.isfinite().all(1), constants


def _selection(
    method: str, images: ScoredImages, number: int, result: FacilityLocationResult, is_constant: bool
) -> Selection:
    tokens, scored, words = images.batch[number], images.scored[number], images.texts[number].words
    smoothed, weights = images.smoothed[images.tokens_of(number)], images.weights[images.tokens_of(number)]
    relevance_notes = (*scored.notes, images.constant_notes[number]) if is_constant else scored.notes
    order, notes = result.indices, relevance_notes
    if is_constant and one_represents_all(result.gains, images.blocks[number]):
        order, notes = even_tokens(tokens, len(order)).cpu(), (*notes, ALIKE)
    indices = order.sort().values
    return Selection(
        indices,
        len(tokens),
        method,
        order=order,
        gains=result.gains,
        coverage=result.coverage,
        bound=result.bound,
        quotas=count_in_blocks(indices, tokens.blocks),
        scores=weights,
        relevance=replace(
            scored,
            smoothed=smoothed,
            polarized=weights,
            words=None if words is None else tuple(words),
            notes=relevance_notes,
        ),
        notes=notes,
    )
