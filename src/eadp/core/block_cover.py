"""Facility location over the blocks of an image as one batch, whose results stay on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eadp.core.backends import DEVICE_BACKENDS, choose_backend
from eadp.core.batched import solve_facility
from eadp.core.block_layout import BlockLayout
from eadp.core.device_tables import numbers_on_device
from eadp.core.similarity import block_similarity
from eadp.core.solution import BlockSolution, Solution
from eadp.core.trace import part


@dataclass(frozen=True)
class BlockCover:
    """Which tokens of each block were picked. Nothing here waits for the device.

    Attributes:
        layout: Where the blocks lie among the tokens.
        solution: The picks of each block.
        quotas: B, int32, the number of picks of each block.
        total: K, the number of picks of all blocks together.
        weights: B×N, the weights of each block.
        is_even: B, true for blocks whose weights are all 0. They are covered evenly, by weights of 1.
    """

    layout: BlockLayout
    solution: BlockSolution
    quotas: Tensor
    total: int
    weights: Tensor
    is_even: Tensor

    @cached_property
    def indices(self) -> Tensor:
        """K, the picked tokens of all blocks, sorted."""
        order = self.solution.order
        starts = [block.start for block in self.layout.blocks]
        if any(starts):
            order = order + self.layout.starts_on_device[:, None]
        if self.total < order.numel():
            is_pick = torch.arange(order.shape[1], device=order.device) < self.quotas[:, None]
            order = order.where(is_pick, self.layout.blocks[-1].stop)
        kept = order.flatten().sort().values[: self.total]
        # From input that is not finite, fewer picks than asked for may have been made.
        return kept.clamp_max(self.layout.blocks[-1].stop - 1) if self.total < order.numel() else kept

    def read(self) -> tuple[list[Solution], list[bool], list[int]]:
        """Read back the picks of each block, whether its weights were all 0, and its quota.

        This waits for the device. A block with a quota of 0 has one pick all the same.
        """
        solutions, (is_even, quotas) = self.solution.read(self.weights, self.is_even, self.quotas)
        return solutions, [bool(each) for each in is_even], [int(quota) for quota in quotas]


def cover_blocks(
    features: Tensor,
    weights: Tensor,
    blocks: Sequence[slice] | BlockLayout,
    quotas: Sequence[int] | Tensor,
    total: int | None = None,
    *,
    goal: Tensor | None = None,
    backend: str = "auto",
) -> BlockCover:
    """Pick Q_p tokens of each block p by facility location, all blocks at once, without waiting for the device.

    A block with a quota of 0 is still solved for one pick, which tells what its best single token represents. Input
    that is not finite does not raise here: `solution.full_objective` is then NaN for its block.

    Args:
        features: N×d.
        weights: N, the weight of each token.
        blocks: The range of token indices of each block, one after the other; or their layout.
        quotas: Q_p, the number of tokens to pick in each block; as an int32 tensor, if only the device knows.
        total: The sum of the quotas. Needed only if they are a tensor.
        goal: B×2, where a block stops before its quota, as for the solvers. None to fill every quota.
        backend: `triton`, `torch`, or `auto` for the device's own.

    Returns:
        The picks.
    """
    chosen = choose_backend(backend, features.device)
    if chosen not in DEVICE_BACKENDS:
        raise ValueError(f"only {' and '.join(DEVICE_BACKENDS)} work on all blocks at once, not {chosen!r}")
    layout = blocks if isinstance(blocks, BlockLayout) else BlockLayout.of(blocks, features.device)
    if isinstance(quotas, Tensor):
        if total is None:
            raise ValueError("quotas on the device need total=, their sum")
        most = min(total, layout.largest)
        limits = quotas.clamp_min(1)
    else:
        total, most = sum(quotas), max(1, *quotas)
        limits = numbers_on_device(tuple(max(1, quota) for quota in quotas), features.device)
        quotas = numbers_on_device(tuple(quotas), features.device)
    stacked_weights, is_even = cover_evenly_without_weights(layout.stack(weights.detach()))
    if chosen == "triton":
        from eadp.core.triton import similarity
        from eadp.core.triton.facility import solve

        if features.dtype == torch.float64:
            matrices = block_similarity(layout.stack(features))
        else:
            with part("similarity"):
                matrices = similarity.block_similarity(features, layout)
        solution = solve(matrices, stacked_weights, layout.sizes_on_device, limits, goal, most, symmetric=True)
    else:
        matrices = block_similarity(layout.stack(features), None if layout.is_regular else layout.is_token)
        solution = solve_facility(matrices, stacked_weights, layout.sizes_on_device, limits, goal, most)
    return BlockCover(layout, solution, quotas, total, stacked_weights, is_even)


def cover_evenly_without_weights(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Replace the weights (B×N) of blocks whose weights are all 0 by 1; return them and which blocks these are (B)."""
    is_even = ~weights.any(dim=1)
    return weights.masked_fill(is_even[:, None], 1), is_even
