"""Diversity-based selection: greedy MAP inference of a determinantal point process (DPP), and max-min distance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from eadp.core import batched, checks, ties
from eadp.core.backends import DEVICE_BACKENDS, MATRIX_BACKENDS, choose_backend
from eadp.core.block_layout import BlockLayout
from eadp.core.device_tables import numbers_on_device
from eadp.core.similarity import block_cosine, token_cosine

DISTANCE_NOISE = 2 * ties.ROUNDING_NOISE
"""How much rounding can change a distance of 1 − cosine, which is twice 1 − similarity."""


@dataclass(frozen=True)
class OrderedPicks:
    """Tokens in the order in which they were picked.

    Attributes:
        indices: K, the picked tokens.
        gains: K, the gain of each pick: the marginal variance (DPP), the distance (max-min) or the score (top-k). 0
            where nothing was left to gain.
    """

    indices: Tensor
    gains: Tensor


def dpp(kernel: Tensor, keep: int, *, backend: str = "auto") -> OrderedPicks:
    """Pick tokens by greedy MAP inference of a DPP (Chen et al., 2018).

    Each pick has the largest variance that the earlier picks leave unexplained. Exactly `keep` tokens are picked, even
    if the kernel's rank is lower: once the picks explain every token up to rounding, the remaining tokens follow in the
    order of their indices. Ties go to the lowest index; see `core.ties`.

    Args:
        kernel: N×N, symmetric. Build it from `token_cosine`: unexplained variances are small differences, for which
            float32 cosines are too coarse.
        keep: Number of tokens to pick.
        backend: `numba`, `triton`, `torch`, or `auto`: numba on the CPU, triton on CUDA and ROCm, torch elsewhere.

    Returns:
        The picks and their marginal variances.
    """
    checks.known("backend", backend, MATRIX_BACKENDS)
    checks.count("keep", keep, checks.square("kernel", kernel))
    checks.finite("kernel", kernel)
    backend = choose_backend(backend, kernel.device)
    if backend == "numba":
        return _pick_by_numba(kernel, keep, "dpp_greedy", ties.ROUNDING_NOISE)
    order, gains = _dpp_solver(backend)(kernel.detach()[None], *_counts(kernel, keep), keep)
    return OrderedPicks(order[0], gains[0])


def max_min(distance: Tensor, keep: int, *, scale: float = 1.0, backend: str = "auto") -> OrderedPicks:
    """Pick tokens that are far apart: farthest-first traversal.

    The first pick is the token whose nearest neighbour is farthest away. Each further pick is the token farthest from
    its nearest picked token. Ties go to the lowest index; see `core.ties`.

    Args:
        distance: N×N.
        keep: Number of tokens to pick.
        scale: Magnitude of the numbers from which the distances were computed, to which rounding errors are relative. 1
            for distances 1 − cosine.
        backend: `numba`, `triton`, `torch`, or `auto`: numba on the CPU, triton on CUDA and ROCm, torch elsewhere.

    Returns:
        The picks and their distances.
    """
    checks.positive("scale", scale)
    checks.known("backend", backend, MATRIX_BACKENDS)
    checks.count("keep", keep, checks.square("distance", distance))
    checks.finite("distance", distance)
    noise = DISTANCE_NOISE * scale
    backend = choose_backend(backend, distance.device)
    if backend == "numba":
        return _pick_by_numba(distance, keep, "max_min_greedy", noise)
    order, gains = _max_min_solver(backend)(distance.detach()[None], *_counts(distance, keep), keep, noise)
    return OrderedPicks(order[0], gains[0])


def dpp_by_quota(
    features: Tensor,
    relevance: Tensor,
    blocks: Sequence[slice],
    quotas: Sequence[int],
    *,
    backend: str = "auto",
    wait: bool = True,
) -> OrderedPicks:
    """Pick Q_p tokens of each block p by `dpp`, with the kernel L_ij = r_i · cos(f_i, f_j) · r_j.

    Args:
        features: N×d.
        relevance: N, the relevance r of each token.
        blocks: The range of token indices of each block.
        quotas: Q_p, the number of tokens to pick in each block.
        backend: As for `dpp`. On a device, all blocks are solved at once.
        wait: Whether to read back if the input was finite. Without, nothing waits for the device.

    Returns:
        The picks, block by block.
    """
    chosen = choose_backend(backend, features.device)
    if chosen in DEVICE_BACKENDS:
        layout = BlockLayout.of(blocks, features.device)
        kernels = _dpp_kernels(chosen, features, relevance, layout)
        if wait:
            checks.finite("kernel", kernels)
        return _pick_together(_dpp_solver(chosen), kernels, layout, quotas)
    parts = []
    for block, quota in zip(blocks, quotas, strict=True):
        if quota:
            cosine = token_cosine(features[block])
            weights = relevance[block].to(cosine)
            picks = dpp(weights[:, None] * cosine * weights, quota, backend=chosen)
            parts.append(OrderedPicks(picks.indices + block.start, picks.gains))
    return _concatenate(parts)


def max_min_by_quota(
    features: Tensor, blocks: Sequence[slice], quotas: Sequence[int], *, backend: str = "auto", wait: bool = True
) -> OrderedPicks:
    """Pick Q_p tokens of each block p by `max_min`, with the distance 1 − cosine.

    Args:
        features: N×d.
        blocks: The range of token indices of each block.
        quotas: Q_p, the number of tokens to pick in each block.
        backend: As for `max_min`. On a device, all blocks are solved at once.
        wait: Whether to read back if the input was finite. Without, nothing waits for the device.

    Returns:
        The picks, block by block.
    """
    chosen = choose_backend(backend, features.device)
    if chosen in DEVICE_BACKENDS:
        layout = BlockLayout.of(blocks, features.device)
        distances = _distances(chosen, features, layout)
        if wait:
            checks.finite("distance", distances)
        solver = partial(_max_min_solver(chosen), noise=DISTANCE_NOISE)
        return _pick_together(solver, distances, layout, quotas)
    parts = []
    for block, quota in zip(blocks, quotas, strict=True):
        if quota:
            picks = max_min(1 - token_cosine(features[block]), quota, backend=chosen)
            parts.append(OrderedPicks(picks.indices + block.start, picks.gains))
    return _concatenate(parts)


def _dpp_kernels(backend: str, features: Tensor, relevance: Tensor, layout: BlockLayout) -> Tensor:
    """B×n×n, the kernel L of each block; undefined beyond a block's size."""
    if backend == "triton" and features.dtype != torch.float64:
        from eadp.core.triton import cosine

        return cosine.dpp_kernels(features, relevance, layout)
    cosines = block_cosine(layout.stack(features))
    weights = layout.stack(relevance).to(cosines)
    return cosines.mul_(weights[:, :, None]).mul_(weights[:, None])


def _distances(backend: str, features: Tensor, layout: BlockLayout) -> Tensor:
    """B×n×n, 1 − cosine within each block; undefined beyond a block's size."""
    if backend == "triton" and features.dtype != torch.float64:
        from eadp.core.triton import cosine

        return cosine.distances(features, layout)
    return block_cosine(layout.stack(features)).neg_().add_(1)


def _concatenate(parts: Sequence[OrderedPicks]) -> OrderedPicks:
    return OrderedPicks(torch.cat([part.indices for part in parts]), torch.cat([part.gains for part in parts]))


def _pick_by_numba(matrix: Tensor, keep: int, kernel_name: str, noise: float) -> OrderedPicks:
    """Run the numba kernel of this name."""
    from eadp.core import kernels

    matrix = matrix.detach().to(torch.promote_types(matrix.dtype, torch.float32))
    contiguous = np.ascontiguousarray(matrix.cpu().numpy())
    order, gains = getattr(kernels, kernel_name)(contiguous, keep, noise, ties.TIE_MARGIN)
    return OrderedPicks(torch.from_numpy(order).to(matrix.device), torch.from_numpy(gains).to(matrix.device))


def _pick_together(
    solve: Callable[..., tuple[Tensor, Tensor]], matrices: Tensor, layout: BlockLayout, quotas: Sequence[int]
) -> OrderedPicks:
    """Solve all blocks at once on the device, and return their picks block by block."""
    limits = numbers_on_device(tuple(quotas), layout.device)
    order, gains = solve(matrices, layout.sizes_on_device, limits, max(quotas))
    if len(layout) > 1 or layout.blocks[0].start:
        order = order + layout.starts_on_device[:, None]
    if min(quotas) == max(quotas):
        return OrderedPicks(order.flatten(), gains.flatten())
    return OrderedPicks(
        *(torch.cat([row[:quota] for row, quota in zip(x, quotas, strict=True)]) for x in (order, gains))
    )


def _counts(matrix: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """The number of tokens and of picks, as a batch of one block."""
    return numbers_on_device((len(matrix),), matrix.device), numbers_on_device((keep,), matrix.device)


def _dpp_solver(backend: str) -> Callable[..., tuple[Tensor, Tensor]]:
    if backend == "torch":
        return batched.solve_dpp
    from eadp.core.triton import dpp as kernels

    return kernels.solve_dpp


def _max_min_solver(backend: str) -> Callable[..., tuple[Tensor, Tensor]]:
    if backend == "torch":
        return batched.solve_max_min
    from eadp.core.triton import max_min as kernels

    return kernels.solve_max_min
