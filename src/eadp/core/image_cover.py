"""Facility location over the blocks of several images as one batch. What the host does not need stays on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from eadp.core.block_cover import BlockCover, cover_blocks
from eadp.core.block_layout import BlockLayout
from eadp.core.blocks import block_result, join_blocks
from eadp.core.facility import FacilityLocationResult


@dataclass(frozen=True)
class ImageCover:
    """Which tokens of several images were picked.

    Attributes:
        cover: The picks of all blocks. Tokens and blocks are numbered image after image.
        blocks: The number of blocks of each image.
        sizes: The number of tokens of each image.
        budgets: The number of picks of each image.
    """

    cover: BlockCover
    blocks: Sequence[int]
    sizes: Sequence[int]
    budgets: Sequence[int]

    @property
    def starts(self) -> list[int]:
        """The first token of each image, and the end of the last."""
        return list(accumulate(self.sizes, initial=0))

    @cached_property
    def results(self) -> list[FacilityLocationResult | None]:
        """The result for each image, with indices that count within it; None where its input was not valid.

        This waits for the device.
        """
        solutions, is_even, quotas = self.cover.read()
        device, results, first = self.cover.quotas.device, list[FacilityLocationResult | None](), 0
        for start, count in zip(self.starts, self.blocks, strict=False):
            own = range(first, first + count)
            first += count
            if any(not 0 < solutions[block].full_objective < math.inf for block in own):
                results.append(None)
                continue
            parts = [block_result(solutions[block], is_even[block], quotas[block]) for block in own]
            starts = [self.cover.layout.blocks[block].start - start for block in own]
            results.append(join_blocks(parts, starts, device))
        return results

    def count_gaining(self) -> Tensor:
        """How many picks of each image gained anything, as a tensor on the device."""
        gaining = (self.cover.solution.gains > 0).sum(1)
        if len(self.blocks) == 1:
            return gaining.sum(0, keepdim=True)
        if len(set(self.blocks)) == 1:
            return gaining.view(len(self.blocks), -1).sum(1)
        counts = torch.tensor(self.blocks)
        images = torch.arange(len(counts)).repeat_interleave(counts).to(gaining.device)
        return gaining.new_zeros(len(counts)).index_add_(0, images, gaining)


def cover_images(
    features: Tensor,
    weights: Tensor,
    layout: BlockLayout,
    blocks: Sequence[int],
    quotas: Sequence[int] | Tensor,
    budgets: Sequence[int],
    *,
    backend: str = "auto",
) -> ImageCover:
    """Pick tokens of several images at once, without waiting for the device.

    Args:
        features: N×d, the tokens of all images.
        weights: N, their weights.
        layout: Where the blocks of all images lie among the tokens.
        blocks: The number of blocks of each image.
        quotas: The number of tokens to pick in each block of all images.
        budgets: The sum of the quotas of each image.
        backend: As for `cover_blocks`.
    """
    cover = cover_blocks(features, weights, layout, quotas, sum(budgets), backend=backend)
    ends = list(accumulate(blocks, initial=0))
    sizes = [sum(layout.sizes[first:last]) for first, last in pairwise(ends)]
    return ImageCover(cover, list(blocks), sizes, list(budgets))
