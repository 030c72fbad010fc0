"""One budget for an image, split over its blocks (crops, frames, images)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from eadp.core import checks
from eadp.core.types import Box, Grid, Layout

RULES = ("importance", "global_guided", "uniform")
ROUNDINGS = ("exact", "paper", "released")

HELD = 1e-6
"""What the release adds to the sum that shares are of."""

WHOLE_IMAGE_SHARE = 0.2
"""What `global_guided` reserves for block 0, the whole image."""


def allocate(
    weights_per_block: Sequence[Tensor],
    budget: int,
    rule: str = "importance",
    rounding: str = "exact",
    layout: Layout | None = None,
) -> list[int]:
    """Q_p for each block p from the maps ŝ_p (N_p values each, or rows×columns).

    importance:    in proportion to w_p = Σ_i ŝ_{p,i}.
    global_guided: block 0 is the whole image and gets 0.2·K; the part of its map (rows×columns) under each local crop
                   says how 0.8·K is split. `layout` says where the crops lie; four crops are 2×2 unless it does.
    uniform:       alike.

    No block gets more than it has. What shares leave to be rounded:
    exact:    exactly the budget, at least 1 for each block where the budget allows it: floors first, then the rest by
              largest remainder.
    paper:    max(1, ⌊share·K⌋), whatever that adds up to; ⌊0.2·K⌋ for the whole image under `global_guided`.
    released: the same, with shares of Σ + 1e-6; under `global_guided` quadrants end at whole cells, local crops share
              what ⌊0.2·K⌋ leaves, and may get 0.
    """
    checks.known("allocation rule", rule, RULES)
    checks.known("rounding", rounding, ROUNDINGS)
    sizes = [block.numel() for block in weights_per_block]
    if not sizes or 0 in sizes:
        raise ValueError(f"every block needs at least one token, got blocks of {sizes}")
    checks.count("budget", budget, sum(sizes))
    for p, block in enumerate(weights_per_block):
        checks.finite(f"weights_per_block[{p}]", block)
        if block.min() < 0:
            raise ValueError(f"weights_per_block[{p}] must be 0 or more, but holds {block.min().item():.6g}")

    guided = rule == "global_guided" and len(sizes) > 1
    released = rounding == "released"
    if len(sizes) == 1 or rule == "uniform":
        wanted = _proportional([1.0] * len(sizes), budget)
    elif not guided:
        wanted = _proportional([block.double().sum().item() for block in weights_per_block], budget, released)
    else:
        under = _sums_under(weights_per_block[0], crop_boxes(layout, len(sizes) - 1), whole_cells=released)
        whole = WHOLE_IMAGE_SHARE * budget
        whole = float(_floor(whole)) if released else whole
        wanted = [whole, *_proportional(under, budget - whole, released)]

    if rounding == "exact" or rule == "uniform":
        return _exactly(budget, wanted, sizes)
    least = [0 if guided and (released or p == 0) else 1 for p in range(len(sizes))]
    return [min(size, max(low, _floor(share))) for share, size, low in zip(wanted, sizes, least, strict=True)]


def alike(grids: Sequence[Grid], budget: int) -> list[int]:
    """The budget split alike over blocks of these sizes, exactly."""
    return allocate([torch.ones(grid) for grid in grids], budget, "uniform")


def _floor(share: float) -> int:
    """⌊share⌋, where a share that is whole but for rounding is whole."""
    return math.floor(share + 1e-9)


def _proportional(weights: Sequence[float], budget: float, released: bool = False) -> list[float]:
    """The budget in proportion to the weights; alike where all are 0."""
    total = sum(weights)
    if released:
        return [budget * (w / (total + HELD)) for w in weights]
    return [budget * w / total for w in weights] if total > 0 else [budget / len(weights)] * len(weights)


def _exactly(budget: int, wanted: Sequence[float], sizes: Sequence[int]) -> list[int]:
    """Whole quotas that add up to the budget, as near to `wanted` as caps and the least of 1 let them be."""
    blocks = range(len(sizes))
    if budget < len(sizes):
        chosen = sorted(blocks, key=lambda p: (-wanted[p], p))[:budget]
        return [int(p in chosen) for p in blocks]
    shares = _filled(budget, wanted, sizes)
    quotas = [_floor(share) for share in shares]
    largest_remainder = sorted((p for p in blocks if quotas[p] < sizes[p]), key=lambda p: (quotas[p] - shares[p], p))
    for p in largest_remainder[: budget - sum(quotas)]:
        quotas[p] += 1
    return quotas


def _filled(budget: int, wanted: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """Shares λ·wanted_p, each held within [1, size_p], that add up to the budget: what a full block cannot take goes to
    the others in proportion. λ is 1 where nothing is held back, else found by bisection."""
    if all(1 <= share <= size for share, size in zip(wanted, sizes, strict=True)):
        return list(wanted)
    total = sum(wanted)
    # A block that wants nothing still has a claim, smaller than any other, on what the full ones leave.
    claims = [max(w, 1e-12 * total) for w in wanted]

    def held(level: float) -> list[float]:
        return [min(float(size), max(1.0, level * claim)) for claim, size in zip(claims, sizes, strict=True)]

    low, high = 0.0, max(size / claim for claim, size in zip(claims, sizes, strict=True))
    for _ in range(200):
        middle = (low + high) / 2
        if sum(held(middle)) < budget:
            low = middle
        else:
            high = middle
    return held(high)


def crop_boxes(layout: Layout | None, crops: int) -> Sequence[Box]:
    """One box a local crop."""
    if layout is None:
        if crops != 4:
            raise ValueError(f"global_guided needs layout= for {crops} local crops: (rows, columns), or a box for each")
        layout = (2, 2)
    if all(isinstance(side, int) for side in layout):
        rows, columns = cast(Grid, layout)
        boxes = [
            (r / rows, c / columns, (r + 1) / rows, (c + 1) / columns) for r in range(rows) for c in range(columns)
        ]
    else:
        boxes = list(cast(Sequence[Box], layout))
    if len(boxes) != crops:
        raise ValueError(f"layout {layout!r} places {len(boxes)} crops, but there are {crops} local blocks")
    for top, left, bottom, right in boxes:
        if not (0 <= top < bottom <= 1 and 0 <= left < right <= 1):
            raise ValueError(
                f"a crop's box is (top, left, bottom, right) within [0, 1], got {(top, left, bottom, right)}"
            )
    return boxes


def _sums_under(guide: Tensor, boxes: Sequence[Box], whole_cells: bool = False) -> list[float]:
    """What the whole image's map adds up to under each box. A cell that a box cuts counts by its share, or, with
    whole_cells, belongs to the box that begins in it."""
    if guide.ndim != 2:
        raise ValueError(
            "global_guided needs the whole image's map as rows×columns in weights_per_block[0], "
            f"got shape {tuple(guide.shape)}"
        )
    guide = guide.double()
    sums = []
    for top, left, bottom, right in boxes:
        rows, columns = guide.shape
        if whole_cells:
            top, bottom = (_floor(edge * rows) / rows for edge in (top, bottom))
            left, right = (_floor(edge * columns) / columns for edge in (left, right))
        down, along = _overlap(rows, top, bottom).to(guide), _overlap(columns, left, right).to(guide)
        sums.append((down @ guide @ along).item())
    return sums


def _overlap(cells: int, start: float, end: float) -> Tensor:
    """How much of each of `cells` equal cells of [0, 1] lies in [start, end], as a share of the cell."""
    edges = torch.arange(cells + 1, dtype=torch.float64)
    return (torch.clamp(edges[1:], max=end * cells) - torch.clamp(edges[:-1], min=start * cells)).clamp_min(0)
