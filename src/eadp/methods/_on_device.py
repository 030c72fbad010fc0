"""Helpers of the methods that select from several images at once on a device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from eadp.core import OrderedPicks, Selection, VisualTokens
from eadp.core.deferred import Deferred

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

    def selection(number: int, kept: Tensor, picked: Tensor, gains: Tensor) -> Selection:
        def problem() -> str | None:
            return NOT_FINITE.format(method=method) if bool(gains.isnan().any()) else None

        return Selection(
            kept,
            len(batch[number]),
            method,
            order=picked,
            gains=gains,
            quotas=Deferred(lambda: batch[number].quotas(kept.cpu())),
            problem=Deferred(problem),
            **{name: values[number] for name, values in fields.items()},
        )

    return [selection(number, *each) for number, each in enumerate(parts)]
