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
from eadp.methods.uniform import Uniform

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


def row_sums(features: Tensor) -> Tensor:
    """Return N, the sum of each token's features (N×d), which is not finite where they are not."""
    return features.sum(1, dtype=torch.float32)


def blocks_of(batch: Sequence[VisualTokens]) -> list[slice]:
    """Return the blocks of all images, with the tokens numbered image after image."""
    starts = accumulate((len(tokens) for tokens in batch), initial=0)
    return [
        slice(block.start + start, block.stop + start)
        for tokens, start in zip(batch, starts, strict=False)
        for block in tokens.blocks
    ]


def spread_alike(
    kept: Tensor, is_alike: Tensor | None, batch: Sequence[VisualTokens], budgets: Sequence[int]
) -> Tensor:
    """Replace the kept tokens of images whose tokens are all alike by tokens on an even grid.

    Args:
        kept: K or M×K, the kept tokens of all images, numbered image after image.
        is_alike: One boolean per image, on the device. None if no image is alike.
        batch: The images.
        budgets: The number of kept tokens of each image.
    """
    if is_alike is None:
        return kept
    starts = accumulate((len(tokens) for tokens in batch), initial=0)
    even = [
        Uniform(keep=budget).select(tokens).indices.sort().values + start
        for tokens, budget, start in zip(batch, budgets, starts, strict=False)
    ]
    by_pick = is_alike if len(batch) == 1 else is_alike[_image_of_pick(budgets).to(kept.device)]
    return torch.where(by_pick, concatenate(even).to(kept.device), kept)


def count_within_images(indices: Tensor, batch: Sequence[VisualTokens], budgets: Sequence[int]) -> Tensor:
    """Turn indices that are numbered image after image into indices within each image."""
    if len(batch) == 1:
        return indices
    starts = torch.tensor(list(accumulate((len(tokens) for tokens in batch), initial=0)))
    return indices - starts[_image_of_pick(budgets)].to(indices.device)


def _image_of_pick(budgets: Sequence[int]) -> Tensor:
    counts = torch.tensor(list(budgets))
    return torch.arange(len(counts)).repeat_interleave(counts)


def select_picks(
    method: str,
    batch: Sequence[VisualTokens],
    picks: OrderedPicks,
    budgets: Sequence[int],
    features: Tensor,
    is_alike: Tensor | None = None,
    **fields: Sequence[Any],
) -> list[Selection]:
    """Return one selection per image, without waiting for the device.

    Args:
        method: The method's name.
        batch: The images.
        picks: The picks of all images, image after image, with tokens numbered image after image.
        budgets: The number of picks of each image.
        features: N×d, the tokens of all images.
        is_alike: For which images the tokens are all alike, so that others on an even grid take the place of the picks.
        fields: Further fields of the selections: one value per image.
    """
    both = torch.stack([picks.indices.sort().values, picks.indices])
    indices, order = count_within_images(spread_alike(both, is_alike, batch, budgets), batch, budgets)
    parts = zip(*(each.split(list(budgets)) for each in (indices, order, picks.gains)), strict=True)
    sums = row_sums(features).split([len(tokens) for tokens in batch])

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
