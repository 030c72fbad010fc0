"""Helpers of the methods that select from several images at once on a device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from eadp.core import OrderedPicks, Selection, VisualTokens
from eadp.core.deferred import defer
from eadp.core.types import count_in_blocks

NOT_FINITE = (
    "{method} cannot select: the features or the question of the image contain NaN or infinity, or are so large that "
    "their norm overflows"
)


def is_on_device(batch: Sequence[VisualTokens]) -> bool:
    """Return whether reading values of these tokens would wait for a device."""
    return batch[0].features.device.type != "cpu"


def concatenate(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate parts; one alone needs no copy."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def row_sums(batch: Sequence[VisualTokens]) -> Tensor:
    """Return N, the sum of each token's features, which is not finite where they are not."""
    return concatenate([tokens.features for tokens in batch]).sum(1, dtype=torch.float32)


def blocks_of(batch: Sequence[VisualTokens]) -> list[slice]:
    """Return the blocks of all images, with the tokens numbered image after image."""
    starts = accumulate((len(tokens) for tokens in batch), initial=0)
    return [
        slice(block.start + start, block.stop + start)
        for tokens, start in zip(batch, starts, strict=False)
        for block in tokens.blocks
    ]


def select_picks(
    method: str, batch: Sequence[VisualTokens], picks: OrderedPicks, budgets: Sequence[int], **fields: Sequence[Any]
) -> list[Selection]:
    """Return one selection per image, without waiting for the device.

    Args:
        method: The method's name.
        batch: The images.
        picks: The picks of all images, image after image, with tokens numbered image after image.
        budgets: The number of picks of each image.
        fields: Further fields of the selections: one value per image.
    """
    order, starts = picks.indices, list(accumulate((len(tokens) for tokens in batch), initial=0))
    indices = order.sort().values
    if len(batch) > 1:
        counts = torch.tensor(list(budgets))
        shifts = torch.tensor(starts)[torch.arange(len(counts)).repeat_interleave(counts)].to(order.device)
        order, indices = order - shifts, indices - shifts
    parts = zip(*(each.split(list(budgets)) for each in (indices, order, picks.gains)), strict=True)
    sums = row_sums(batch).split([len(tokens) for tokens in batch])

    def selection(number: int, kept: Tensor, picked: Tensor, gains: Tensor) -> Selection:
        # What a selection refers to lives as long as it does: not the images.
        blocks, checked = batch[number].blocks, [sums[number], gains]
        checked += [values[number] for values in fields.values() if isinstance(values[number], Tensor)]

        def problem() -> str | None:
            is_finite = all(bool(each.isfinite().all()) for each in checked)
            return None if is_finite else NOT_FINITE.format(method=method)

        return Selection(
            kept,
            len(batch[number]),
            method,
            order=picked,
            gains=gains,
            quotas=defer(lambda: count_in_blocks(kept.cpu(), blocks)),
            problem=defer(problem),
            **{name: values[number] for name, values in fields.items()},
        )

    return [selection(number, *each) for number, each in enumerate(parts)]
