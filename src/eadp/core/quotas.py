"""Dynamic quota allocation (supplement): split one token budget over the blocks (crops, frames) of an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from eadp.core import checks
from eadp.core.types import Box, Grid, Layout

ALLOCATION_RULES = ("importance", "global_guided", "uniform")
ROUNDINGS = ("exact", "paper", "released")

RELEASE_EPSILON = 1e-6
"""Added by EADP's release to the sum of weights that it divides by."""

WHOLE_IMAGE_SHARE = 0.2
"""Share of the budget that `global_guided` reserves for block 0, the whole image."""


def allocate(
    weights_per_block: Sequence[Tensor],
    budget: int,
    rule: str = "importance",
    rounding: str = "exact",
    layout: Layout | None = None,
) -> list[int]:
    """Compute the quota Q_p of each block p from its polarized scores ŝ_p. No quota exceeds the block's size.

    The rule determines the share of each block:

    - `importance`: Importance-based allocation. Proportional to w_p = Σ_i ŝ_{p,i}.
    - `global_guided`: Global-guided allocation. Block 0 is the whole image and gets 0.2·K. The other 0.8·K is split
      over the local crops, proportional to the sum of block 0's map within each crop's area.
    - `uniform`: The same share for each block.

    The rounding turns shares into whole numbers (uniform shares are always rounded by `exact`):

    - `exact`: Quotas add up to the budget, with at least 1 token per block if the budget allows it. Shares are rounded
      down, then the blocks with the largest remainders get one token more.
    - `paper`: max(1, ⌊share·K⌋), whatever that adds up to; ⌊0.2·K⌋ for the whole image under `global_guided`.
    - `released`: As in `paper`, but shares are divided by Σw + 1e-6. Under `global_guided`, crop areas are rounded down
      to whole cells, the local crops share K − ⌊0.2·K⌋, and a local crop may get 0.

    Args:
        weights_per_block: ŝ_p of each block: N_p values, or rows×columns (required for block 0 under `global_guided`).
        budget: K.
        rule: One of `ALLOCATION_RULES`.
        rounding: One of `ROUNDINGS`.
        layout: Position of the local crops on the whole image, for `global_guided`. Optional if there are four: 2×2.

    Returns:
        Q_p of each block.

    Raises:
        ValueError: If an argument is out of range, or `global_guided` lacks the layout or the map of block 0.
        TypeError: If `budget` is not an int.
    """
    checks.known("allocation rule", rule, ALLOCATION_RULES)
    checks.known("rounding", rounding, ROUNDINGS)
    sizes = [block.numel() for block in weights_per_block]
    if not sizes or 0 in sizes:
        raise ValueError(f"every block needs at least one token, got blocks of {sizes}")
    checks.count("budget", budget, sum(sizes))
    for p, block in enumerate(weights_per_block):
        checks.finite(f"weights_per_block[{p}]", block)
        if block.min() < 0:
            raise ValueError(f"weights_per_block[{p}] must be 0 or more, but contains {block.min().item():.6g}")

    guided = rule == "global_guided" and len(sizes) > 1
    released = rounding == "released"
    if len(sizes) == 1 or rule == "uniform":
        shares = _proportional([1.0] * len(sizes), budget)
    elif not guided:
        shares = _proportional([block.double().sum().item() for block in weights_per_block], budget, released)
    else:
        boxes = crop_boxes(layout, len(sizes) - 1)
        crop_weights = _sums_in_boxes(weights_per_block[0], boxes, whole_cells=released)
        whole = WHOLE_IMAGE_SHARE * budget
        whole = float(_floor(whole)) if released else whole
        shares = [whole, *_proportional(crop_weights, budget - whole, released)]

    if rounding == "exact" or rule == "uniform":
        return _round_to_budget(budget, shares, sizes)
    least = [0 if guided and (released or p == 0) else 1 for p in range(len(sizes))]
    return [min(size, max(low, _floor(share))) for share, size, low in zip(shares, sizes, least, strict=True)]


def split_evenly(grids: Sequence[Grid], budget: int) -> list[int]:
    """Split a budget evenly over blocks of these grids; the quotas add up to the budget."""
    return allocate([torch.ones(grid) for grid in grids], budget, "uniform")


def crop_boxes(layout: Layout | None, crops: int) -> Sequence[Box]:
    """Return one box per local crop.

    Args:
        layout: (rows, columns) of a regular grid of crops, or the boxes themselves. None for 2×2.
        crops: Number of local crops.

    Returns:
        The boxes, (top, left, bottom, right) in [0, 1].

    Raises:
        ValueError: If the layout does not match the number of crops, or a box does not lie within the image.
    """
    if layout is None:
        if crops != 4:
            raise ValueError(
                f"global_guided needs layout= for {crops} local crops: (rows, columns), or one box per crop"
            )
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


def _floor(share: float) -> int:
    """⌊share⌋, with a tolerance for shares that rounding put just below a whole number."""
    return math.floor(share + 1e-9)


def _proportional(weights: Sequence[float], budget: float, released: bool = False) -> list[float]:
    """Split the budget in proportion to the weights, or evenly if all are 0."""
    total = sum(weights)
    if released:
        return [budget * (w / (total + RELEASE_EPSILON)) for w in weights]
    return [budget * w / total for w in weights] if total > 0 else [budget / len(weights)] * len(weights)


def _round_to_budget(budget: int, shares: Sequence[float], sizes: Sequence[int]) -> list[int]:
    """Round shares to quotas between 1 and each block's size that add up to the budget."""
    blocks = range(len(sizes))
    if budget < len(sizes):
        chosen = sorted(blocks, key=lambda p: (-shares[p], p))[:budget]
        return [int(p in chosen) for p in blocks]
    shares = _scale_within_sizes(budget, shares, sizes)
    quotas = [_floor(share) for share in shares]
    largest_remainder = sorted((p for p in blocks if quotas[p] < sizes[p]), key=lambda p: (quotas[p] - shares[p], p))
    for p in largest_remainder[: budget - sum(quotas)]:
        quotas[p] += 1
    return quotas


def _scale_within_sizes(budget: int, shares: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """Scale shares by a common factor and clip each to [1, size_p], such that they add up to the budget.

    What a full block cannot take thus goes to the others in proportion. The factor is 1 if nothing needs clipping;
    otherwise it is found by bisection.
    """
    if all(1 <= share <= size for share, size in zip(shares, sizes, strict=True)):
        return list(shares)
    total = sum(shares)
    # A block with a share of 0 must still be able to take what full blocks leave, after all others.
    shares = [max(share, 1e-12 * total) for share in shares]

    def clipped(factor: float) -> list[float]:
        return [min(float(size), max(1.0, factor * share)) for share, size in zip(shares, sizes, strict=True)]

    low, high = 0.0, max(size / share for share, size in zip(shares, sizes, strict=True))
    for _ in range(200):
        middle = (low + high) / 2
        if sum(clipped(middle)) < budget:
            low = middle
        else:
            high = middle
    return clipped(high)


def _sums_in_boxes(guide: Tensor, boxes: Sequence[Box], whole_cells: bool = False) -> list[float]:
    """Sum the map of the whole image within each box.

    A cell that a box cuts counts by the share of its area. With `whole_cells`, the edges of boxes are rounded down to
    whole cells instead.
    """
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
        row_shares, column_shares = overlap(rows, top, bottom).to(guide), overlap(columns, left, right).to(guide)
        sums.append((row_shares @ guide @ column_shares).item())
    return sums


def overlap(cells: int, start: float, end: float) -> Tensor:
    """Divide [0, 1] into equal cells and return the share of each that lies in [start, end]."""
    edges = torch.arange(cells + 1, dtype=torch.float64)
    return (torch.clamp(edges[1:], max=end * cells) - torch.clamp(edges[:-1], min=start * cells)).clamp_min(0)
