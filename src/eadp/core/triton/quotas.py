"""The budget of each image split over its blocks (`core.allocate`), for all images of a batch in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from eadp.core.triton.launch import launch

BISECTIONS = 110
"""Steps in which the common factor of the shares is found: enough for float64, whatever the shares are."""


@triton.jit
def _clipped(shares, sizes, factor):
    """Scale shares by a factor and clip each to [1, size]."""
    return tl.minimum(sizes, tl.maximum(1.0, factor * shares))


@triton.jit
def split_budgets(
    block_weights,
    sizes,
    images,
    reservations,
    keys,
    quotas,
    bisections: tl.constexpr,
    padded: tl.constexpr,
):
    """Split the budget of one image. Grid: images.

    `images` holds the first block, the number of blocks and the budget of each image, `reservations` what its first
    block gets in any case; 0 if that is nothing.
    """
    image = tl.program_id(0)
    first = tl.load(images + image * 3)
    count = tl.load(images + image * 3 + 1)
    budget = tl.load(images + image * 3 + 2)
    p = tl.arange(0, padded)
    is_block = p < count
    weight = tl.load(block_weights + first + p, mask=is_block, other=0.0)
    size = tl.load(sizes + first + p, mask=is_block, other=0).to(tl.float64)
    whole = budget.to(tl.float64)
    blocks = count.to(tl.float64)
    reserved = tl.load(reservations + image)
    is_reserved = p < tl.where(reserved > 0.0, 1, 0)
    weight = tl.where(is_reserved, 0.0, weight)
    total = tl.sum(weight, 0)
    receivers = tl.where(reserved > 0.0, blocks - 1.0, blocks)
    even = tl.zeros((padded,), tl.float64) + (whole - reserved) / receivers
    share = tl.where(total > 0.0, (whole - reserved) * weight / total, even)
    share = tl.where(is_reserved, reserved, share)
    share = tl.where(is_block, share, 0.0)

    fits = tl.sum(tl.where(is_block & ((share < 1.0) | (share > size)), 1, 0), 0) == 0
    # A block with a share of 0 must still be able to take what full blocks leave, after all others.
    lifted = tl.maximum(share, 1e-12 * tl.sum(share, 0))
    lifted = tl.where(is_block, lifted, 1.0)
    low = reserved * 0.0
    high = tl.max(tl.where(is_block, size / lifted, 0.0), 0)
    for _ in range(tl.where(fits, 0, bisections)):
        middle = (low + high) / 2
        is_short = tl.sum(tl.where(is_block, _clipped(lifted, size, middle), 0.0), 0) < whole
        low = tl.where(is_short, middle, low)
        high = tl.where(is_short, high, middle)
    scaled = tl.where(fits, share, _clipped(lifted, size, high))
    floors = tl.floor(scaled + 1e-9)

    # Fewer tokens than blocks: the largest shares get one each. Otherwise the largest remainders get one more.
    is_scarce = budget < count
    can_take = is_block & (is_scarce | (floors < size))
    key = tl.where(is_scarce, -share, floors - scaled)
    tl.store(keys + first + p, tl.where(can_take, key, float("inf")), mask=is_block)
    tl.debug_barrier()
    rank = tl.zeros((padded,), tl.int32)
    for q in range(0, count):
        other = tl.load(keys + first + q)
        rank += ((other < key) | ((other == key) & (q < p))).to(tl.int32)
    given = tl.where(is_scarce, 0.0, floors)
    left = whole - tl.sum(tl.where(is_block, given, 0.0), 0)
    quota = given + tl.where(can_take & (rank.to(tl.float64) < left), 1.0, 0.0)
    # What is not a number must not become an index.
    quota = tl.where((quota >= 0.0) & (quota <= size), quota, 0.0)
    tl.store(quotas + first + p, quota.to(tl.int32), mask=is_block)


def split(
    weights: Tensor, sizes: Tensor, blocks: Sequence[int], budgets: Sequence[int], reserved_share: float = 0.0
) -> Tensor:
    """Compute the quota of each block, by the rounding `exact` of `core.allocate`.

    Args:
        weights: B, float64, the weight of each block, image after image.
        sizes: B, int32, the number of tokens of each block.
        blocks: The number of blocks of each image.
        budgets: The budget of each image.
        reserved_share: The share of the budget that the first block of an image gets, if it has several.

    Returns:
        B, int32, the quotas.
    """
    images, first = [], 0
    for count, budget in zip(blocks, budgets, strict=True):
        images += [first, count, budget]
        first += count
    table = torch.tensor(images, dtype=torch.int32, device=weights.device)
    reserved = [reserved_share * budget if count > 1 else 0.0 for count, budget in zip(blocks, budgets, strict=True)]
    reservations = torch.tensor(reserved, dtype=torch.float64, device=weights.device)
    keys, quotas = torch.empty_like(weights), torch.empty_like(sizes)
    launch(
        split_budgets,
        (len(blocks),),
        weights,
        sizes,
        table,
        reservations,
        keys,
        quotas,
        bisections=BISECTIONS,
        padded=triton.next_power_of_2(max(blocks)),
        num_warps=4,
    )
    return quotas
