"""What VisionZip's kernels need to know of the rows of all images. The host knows it before the device has chosen."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eadp.core import VisualTokens
from eadp.methods._merging import has_mosaic, order_blocks

if TYPE_CHECKING:
    from eadp.core.triton.row_merging import BlockRows, JointList


def merge_images(
    batch: Sequence[VisualTokens],
    scores: Tensor,
    keys: Tensor,
    quotas: Sequence[Sequence[int]],
    contextual: Sequence[Sequence[int]],
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Merge the tokens of all images at once, without waiting for the device.

    Args:
        batch: The images; all of them have CLS tokens, or none.
        scores: N, of all images' tokens, by which the dominant tokens are chosen.
        keys: N×c, by which tokens join a target.
        quotas: The rows of each block.
        contextual: How many of them are contextual.

    Returns:
        For each image: K, the positions that the rows fill; K×(N + CLS tokens), the weights; K, the token that each row
        stands for, −1 for CLS, in the order of the language model.
    """
    from eadp.core.triton.row_merging import merge_rows

    has_class = batch[0].tower_cls is not None
    starts = accumulate((len(tokens) for tokens in batch), initial=0)
    counts = [sum(each) for each in quotas]
    first_rows = accumulate(counts, initial=0)
    blocks, lists = list[list["BlockRows"]](), list["JointList"]()
    for tokens, start, row, each, merged in zip(batch, starts, first_rows, quotas, contextual, strict=False):
        of_image, together = _plan_image(tokens, start, row, each, merged)
        blocks.append(of_image)
        lists += together
    positions, rows, weights = merge_rows(scores, keys, blocks, lists, has_class)
    widths = [len(tokens) + has_class * len(tokens.grids) for tokens in batch]
    parts = weights.split([count * width for count, width in zip(counts, widths, strict=True)])
    merges = [part.view(count, width) for part, count, width in zip(parts, counts, widths, strict=True)]
    return list(zip(positions.split(counts), merges, rows.split(counts), strict=True))


def _plan_image(
    tokens: VisualTokens, start: int, first_row: int, quotas: Sequence[int], contextual: Sequence[int]
) -> tuple[list[BlockRows], list[JointList]]:
    """Assign rows to the blocks of an image, whose first token and first row are given."""
    from eadp.core.triton.row_merging import BlockRows, JointList

    sizes = [block.stop - block.start for block in tokens.blocks]
    has_class = [tokens.tower_cls is not None and 0 < quota < size for quota, size in zip(quotas, sizes, strict=True)]
    dominant = [quota - count - one for quota, count, one in zip(quotas, contextual, has_class, strict=True)]
    is_mosaic, numbers = has_mosaic(tokens), range(len(sizes))
    class_rows, dominant_rows, contextual_rows = [-1] * len(sizes), [-1] * len(sizes), [0] * len(sizes)
    row, lists = first_row, list[JointList]()
    for number in order_blocks(tokens)[: 1 if is_mosaic else None]:
        class_rows[number] = row if has_class[number] else -1
        dominant_rows[number] = row + has_class[number]
        contextual_rows[number] = dominant_rows[number] + dominant[number]
        row += quotas[number]
    if is_mosaic:
        begin = tokens.blocks[1].start
        sequence = torch.arange(len(tokens)) if tokens.sequence is None else tokens.sequence
        in_order = (sequence[begin:].argsort() + begin + start).tolist()
        lists.append(JointList(tuple(in_order), row, start))
        row += sum(dominant[1:])
        for number in numbers[1:]:
            class_rows[number] = row if has_class[number] else -1
            row += has_class[number]
        for number in numbers[1:]:
            contextual_rows[number] = row
            row += contextual[number]
    first_positions = accumulate(quotas, initial=first_row)
    return [
        BlockRows(
            start + tokens.blocks[number].start,
            sizes[number],
            dominant[number],
            contextual[number],
            dominant_rows[number],
            contextual_rows[number],
            class_rows[number],
            position,
            start,
        )
        for number, position in zip(numbers, first_positions, strict=False)
    ], lists
