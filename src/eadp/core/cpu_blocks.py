"""Facility location over many blocks of equal size on the CPU, with as many threads as torch may use."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Thread

import numpy as np
import torch
from torch import Tensor

from eadp.core import ties
from eadp.core.solution import Solution


def solve_blocks(matrices: Tensor, weights: Tensor, limits: Sequence[int]) -> list[Solution]:
    """Maximize the facility location objective of every block greedily.

    The blocks are divided among `torch.get_num_threads()` threads. The loops release the GIL, and each block is solved
    by one thread, so the picks do not depend on the number of threads.

    Args:
        matrices: B×N×N, symmetric.
        weights: B×N.
        limits: The number of picks of each block, at least 1.

    Returns:
        The solution of each block. F(all tokens) is NaN where the input was negative or not finite.
    """
    from eadp.core.kernels import facility_greedy_blocks

    blocks = len(matrices)
    rows, w = matrices.contiguous().numpy(), weights.double().contiguous().numpy()
    counts, most = np.array(limits, np.int64), max(limits)
    order, gains, figures = np.zeros((blocks, most), np.int64), np.zeros((blocks, most)), np.empty((blocks, 3))

    def solve(first: int, last: int) -> None:
        facility_greedy_blocks(
            rows, w, counts, first, last, ties.ROUNDING_NOISE, ties.TIE_MARGIN, order, gains, figures
        )

    shares = np.linspace(0, blocks, 1 + min(blocks, torch.get_num_threads())).round().astype(int)
    ranges = list(zip(shares[:-1].tolist(), shares[1:].tolist(), strict=True))
    others = [Thread(target=solve, args=each) for each in ranges[1:]]
    for thread in others:
        thread.start()
    solve(*ranges[0])
    for thread in others:
        thread.join()
    return [
        Solution(torch.from_numpy(order[b, :count]), torch.from_numpy(gains[b, :count]), *figures[b].tolist())
        for b, count in enumerate(limits)
    ]
