"""Dynamic quota allocation for several images on a device, without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eadp.core.backends import choose_backend
from eadp.core.block_layout import BlockLayout
from eadp.core.quotas import WHOLE_IMAGE_SHARE, allocate, crop_boxes, overlap
from eadp.core.types import Layout


def allocate_images(
    weights: Tensor,
    layout: BlockLayout,
    grids: Sequence[Sequence[tuple[int, int]]],
    budgets: Sequence[int],
    rule: str,
    layouts: Sequence[Layout | None],
) -> Tensor | list[int]:
    """Compute the quota of each block of several images, by the rounding `exact` of `allocate`.

    Args:
        weights: N, the polarized scores of all images.
        layout: Where the blocks of all images lie among the tokens.
        grids: (rows, columns) of each block of each image.
        budgets: The budget of each image.
        rule: As for `allocate`.
        layouts: Position of the local crops of each image, for `global_guided`.

    Returns:
        The quotas, as a tensor on the device. A list where the host knows them, or where a device without Triton has to
        be read.
    """
    counts = [len(of_image) for of_image in grids]
    if rule == "uniform" or max(counts) == 1:
        ones = [[torch.ones(grid) for grid in of_image] for of_image in grids]
        uniform = [allocate(maps, budget, "uniform") for maps, budget in zip(ones, budgets, strict=True)]
        return [quota for of_image in uniform for quota in of_image]
    if choose_backend("auto", weights.device) != "triton":
        return _allocate_on_host(weights.cpu(), grids, budgets, rule, layouts)
    from eadp.core.triton.quotas import split

    sums = layout.stack(weights).sum(dim=1, dtype=torch.float64)
    if rule == "importance":
        return split(sums, layout.sizes_on_device, counts, budgets)
    block = 0
    for of_image, crops in zip(grids, layouts, strict=True):
        if len(of_image) > 1:
            (rows, columns), tokens = of_image[0], layout.blocks[block]
            boxes = crop_boxes(crops, len(of_image) - 1)
            areas = torch.stack(
                [
                    overlap(rows, top, bottom)[:, None] * overlap(columns, left, right)
                    for top, left, bottom, right in boxes
                ]
            )
            whole = weights[tokens].double()
            sums[block + 1 : block + len(of_image)] = areas.flatten(1).to(whole.device) @ whole
        block += len(of_image)
    return split(sums, layout.sizes_on_device, counts, budgets, WHOLE_IMAGE_SHARE)


def _allocate_on_host(
    weights: Tensor,
    grids: Sequence[Sequence[tuple[int, int]]],
    budgets: Sequence[int],
    rule: str,
    layouts: Sequence[Layout | None],
) -> list[int]:
    quotas: list[int] = []
    for of_image, budget, crops in zip(grids, budgets, layouts, strict=True):
        maps = []
        for rows, columns in of_image:
            own, weights = weights[: rows * columns], weights[rows * columns :]
            maps.append(own.view(rows, columns))
        quotas += allocate(maps, budget, rule, "exact", crops)
    return quotas
