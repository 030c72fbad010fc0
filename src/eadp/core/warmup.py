"""Compile the loops of the CPU ahead of the first selection."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from eadp.core.blocks import facility_location_by_quota
from eadp.core.diversity import dpp, max_min
from eadp.core.facility import facility_location
from eadp.core.similarity import token_cosine, token_similarity
from eadp.core.temporal import facility_location_over_time

TOKENS, KEEP = 16, 4
"""The size of the selections that have the loops compiled."""


@dataclass(frozen=True)
class WarmUp:
    """What a warm-up did.

    Attributes:
        compiled: Number of loops that were compiled, counted once per type of their arguments.
        read: Number of loops that were read from the cache.
        folder: The folder of the cache.
    """

    compiled: int
    read: int
    folder: Path


def warm_up() -> WarmUp:
    """Compile every loop for matrices of float32 and float64, or read it from the cache.

    The counts cover this process: loops that were used before count too.
    """
    from eadp.core.kernels import diversity, facility, scan, temporal

    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        features = torch.randn(TOKENS, TOKENS, generator=generator, dtype=dtype)
        facility_location(token_similarity(features), torch.ones(TOKENS), KEEP, backend="numba")
        halves = [slice(0, TOKENS // 2), slice(TOKENS // 2, TOKENS)]
        facility_location_by_quota(features, torch.ones(TOKENS), halves, [KEEP, KEEP], backend="numba")
        facility_location_over_time(features, torch.ones(TOKENS), frames=4, reach=1, keep=KEEP)
        cosine = token_cosine(features).to(dtype)
        dpp(cosine, KEEP, backend="numba")
        max_min(1 - cosine, KEEP, backend="numba")
    modules = (diversity, facility, scan, temporal)
    loops = {each for module in modules for each in vars(module).values() if hasattr(each, "stats")}
    statistics = [each.stats for each in loops]
    return WarmUp(
        compiled=sum(sum(each.cache_misses.values()) for each in statistics),
        read=sum(sum(each.cache_hits.values()) for each in statistics),
        folder=Path(statistics[0].cache_path),
    )
