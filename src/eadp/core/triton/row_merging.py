"""Merged rows of all images at once: which tokens are rows, which row every other token joins, and the weights.

Each block keeps its D tokens of highest score. Of its other tokens, every s-th is a target, until there are C of them,
and each token that is left joins the target with the most similar key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from eadp.core.device_tables import numbers_on_device
from eadp.core.triton.launch import launch

TILE = 64
"""Tokens that one program ranks or assigns at a time, and targets that it compares them with at a time."""

DEPTH = 32
"""Channels that are read at a time."""

CHUNK = 1024
"""Tokens that are listed or weighted at a time."""


@dataclass(frozen=True)
class BlockRows:
    """The rows of one block. Tokens are numbered image after image, and rows as they leave the kernels.

    Attributes:
        start: The first token.
        size: The number of tokens.
        dominant: D, the number of tokens that are kept for their scores.
        contextual: C, the number of targets.
        first_dominant: The row of the first dominant token; the others follow by position. −1 where the dominant
            tokens of several blocks are listed together.
        first_contextual: The row of the first target.
        class_row: The row of the CLS token, which fills the first position that no row has; −1 for none.
        first_position: Where the positions that the block's rows fill begin in the list of all positions.
        first_of_image: The first token of the image.
    """

    start: int
    size: int
    dominant: int
    contextual: int
    first_dominant: int
    first_contextual: int
    class_row: int
    first_position: int
    first_of_image: int

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.dominant + self.contextual + (self.class_row >= 0)

    def numbers(self) -> tuple[int, ...]:
        """The block's entry in the table of the kernels, 10 numbers."""
        step = (self.size - self.dominant) // max(self.contextual, 1)
        return (
            *(self.start, self.size, self.dominant, self.contextual, max(step, 1)),
            *(self.first_dominant, self.first_contextual, self.class_row, self.first_position, self.first_of_image),
        )


@dataclass(frozen=True)
class JointList:
    """Dominant tokens of several blocks of an image that are listed together.

    Attributes:
        tokens: The tokens of these blocks, in the order of the list.
        first_row: The row of the first of them that is dominant.
        first_of_image: The first token of the image.
    """

    tokens: tuple[int, ...]
    first_row: int
    first_of_image: int


@triton.jit
def find_dominant(scores, table, is_dominant, tile: tl.constexpr):
    """Find the D tokens of highest score; of equal scores, the lower index is first. Grid: tiles of tokens × blocks."""
    table += tl.program_id(1) * 10
    n = tl.load(table + 1)
    dominant = tl.load(table + 2)
    start = tl.load(table)
    i = tl.program_id(0) * tile + tl.arange(0, tile)
    if tl.program_id(0) * tile < n:
        own = tl.load(scores + start + i, mask=i < n, other=0.0).to(tl.float32)
        own = tl.where(own != own, float("inf"), own)
        before = tl.zeros((tile,), tl.int32)
        for first in range(0, n, tile):
            j = first + tl.arange(0, tile)
            other = tl.load(scores + start + j, mask=j < n, other=0.0).to(tl.float32)
            other = tl.where(other != other, float("inf"), other)
            is_equal = (other[:, None] == own[None, :]) & (j[:, None] < i[None, :])
            is_before = ((other[:, None] > own[None, :]) | is_equal) & (j < n)[:, None]
            before += tl.sum(is_before.to(tl.int32), 0)
        tl.store(is_dominant + start + i, (before < dominant).to(tl.int32), mask=i < n)


@triton.jit
def list_rows(is_dominant, table, walks, walked, row_of, rows, positions, blocks, chunk: tl.constexpr):
    """List the rows and the positions that they fill. Grid: blocks, then joint lists.

    `row_of` becomes the row of each dominant token and target, and −1 for the others; `rows` the token of each row.
    """
    program = tl.program_id(0)
    if program < blocks:
        table += program * 10
        start = tl.load(table)
        n = tl.load(table + 1)
        contextual = tl.load(table + 3)
        step = tl.load(table + 4)
        first_dominant = tl.load(table + 5)
        first_contextual = tl.load(table + 6)
        class_row = tl.load(table + 7)
        first_position = tl.load(table + 8)
        shift = start - tl.load(table + 9)
        listed = 0
        free = 0
        joining = 0
        filled = 0
        for first in range(0, n, chunk):
            i = first + tl.arange(0, chunk)
            flag = tl.load(is_dominant + start + i, mask=i < n, other=2)
            dominant = (flag == 1).to(tl.int32)
            is_free = (flag == 0).to(tl.int32)
            number = free + tl.cumsum(is_free, 0) - 1
            is_target = (flag == 0) & (number % step == 0) & (number // step < contextual)
            joins = ((flag == 0) & (is_target == 0)).to(tl.int32)
            is_first = (joins == 1) & (joining + tl.cumsum(joins, 0) == 1) & (class_row >= 0)
            fills = ((flag == 1) | is_target | is_first).to(tl.int32)
            row = tl.where(is_target, first_contextual + number // step, -1)
            row = tl.where(flag == 1, first_dominant + listed + tl.cumsum(dominant, 0) - 1, row)
            # Another program lists these.
            is_elsewhere = (flag == 1) & (first_dominant < 0)
            tl.store(row_of + start + i, row, mask=(i < n) & (is_elsewhere == 0))
            tl.store(rows + row, (shift + i).to(tl.int64), mask=(row >= 0) & (is_elsewhere == 0))
            place = first_position + filled + tl.cumsum(fills, 0) - 1
            tl.store(positions + place, (shift + i).to(tl.int64), mask=fills == 1)
            listed += tl.sum(dominant, 0)
            free += tl.sum(is_free, 0)
            joining += tl.sum(joins, 0)
            filled += tl.sum(fills, 0)
        if class_row >= 0:
            tl.store(rows + class_row, tl.full((), -1, tl.int64))
    else:
        walks += (program - blocks) * 4
        begin = tl.load(walks)
        n = tl.load(walks + 1)
        first_row = tl.load(walks + 2)
        first_of_image = tl.load(walks + 3)
        listed = 0
        for first in range(0, n, chunk):
            i = first + tl.arange(0, chunk)
            token = tl.load(walked + begin + i, mask=i < n, other=0)
            dominant = tl.load(is_dominant + token, mask=i < n, other=0)
            row = first_row + listed + tl.cumsum(dominant, 0) - 1
            tl.store(row_of + token, row, mask=dominant == 1)
            tl.store(rows + row, (token - first_of_image).to(tl.int64), mask=dominant == 1)
            listed += tl.sum(dominant, 0)


@triton.jit
def join_targets(unscaled_keys, table, rows, row_of, stride_token, channels, tile: tl.constexpr, depth: tl.constexpr):
    """Let each token without a row join the target with the most similar key. Grid: tiles of tokens × blocks.

    Of equal cosines, the first target counts. A key of zeros has a cosine of 0 with every other. The norm of the
    token's own key would divide all its cosines alike, so it is left out.
    """
    table += tl.program_id(1) * 10
    start = tl.load(table)
    n = tl.load(table + 1)
    contextual = tl.load(table + 3)
    first_row = tl.load(table + 6)
    first_of_image = tl.load(table + 9)
    i = tl.program_id(0) * tile + tl.arange(0, tile)
    if (tl.program_id(0) * tile < n) & (contextual > 0):
        row = tl.load(row_of + start + i, mask=i < n, other=0)
        i_offsets = (start + i).to(tl.int64) * stride_token
        highest = tl.full((tile,), float("-inf"), tl.float32)
        nearest = tl.zeros((tile,), tl.int32)
        for first in range(0, contextual, tile):
            j = first + tl.arange(0, tile)
            target = first_of_image + tl.load(rows + first_row + j, mask=j < contextual, other=0)
            j_offsets = target.to(tl.int64) * stride_token
            products = tl.zeros((tile, tile), tl.float32)
            j_squares = tl.zeros((tile,), tl.float32)
            for channel in range(0, channels, depth):
                c = channel + tl.arange(0, depth)
                a = tl.load(
                    unscaled_keys + i_offsets[:, None] + c[None, :],
                    mask=(i < n)[:, None] & (c < channels)[None, :],
                    other=0.0,
                )
                b = tl.load(
                    unscaled_keys + j_offsets[:, None] + c[None, :],
                    mask=(j < contextual)[:, None] & (c < channels)[None, :],
                    other=0.0,
                )
                products += tl.dot(a, tl.trans(b), input_precision="ieee")
                j_squares += tl.sum(b * b, 1)
            j_norms = tl.where(j_squares == 0.0, 1.0, tl.sqrt(j_squares))
            cosine = products / j_norms[None, :]
            cosine = tl.where((j < contextual)[None, :], cosine, float("-inf"))
            top = tl.max(cosine, 1)
            nearest = tl.where(top > highest, first + tl.argmax(cosine, 1), nearest)
            highest = tl.maximum(highest, top)
        tl.store(row_of + start + i, first_row + nearest, mask=(i < n) & (row < 0))


@triton.jit
def write_weights(row_of, rows, image_table, table, merge, chunk: tl.constexpr):
    """Write the weights of one row: 1 for its own token, and for a target the mean of those that joined it.

    Grid: rows × images. The table of images has seven numbers each: the first row, their number, the first token, their
    number, the number of CLS tokens, the first block, and where the weights begin.
    """
    image_table += tl.program_id(1) * 7
    first_row = tl.load(image_table)
    if tl.program_id(0) < tl.load(image_table + 1):
        row = first_row + tl.program_id(0)
        start = tl.load(image_table + 2)
        n = tl.load(image_table + 3)
        classes = tl.load(image_table + 4)
        table += tl.load(image_table + 5) * 10
        merge += tl.load(image_table + 6) + tl.program_id(0).to(tl.int64) * (n + classes)
        own = tl.load(rows + row)
        members = 0
        for first in range(0, n, chunk):
            i = first + tl.arange(0, chunk)
            joined = tl.load(row_of + start + i, mask=i < n, other=-1) == row
            members += tl.sum((joined & (i != own)).to(tl.int32), 0)
        share = 1.0 / tl.maximum(members, 1).to(tl.float32)
        for first in range(0, n, chunk):
            i = first + tl.arange(0, chunk)
            joined = tl.load(row_of + start + i, mask=i < n, other=-1) == row
            tl.store(merge + i, tl.where(joined, tl.where(i == own, 1.0, share), 0.0), mask=i < n)
        for first in range(0, classes, chunk):
            i = first + tl.arange(0, chunk)
            class_row = tl.load(table + i * 10 + 7, mask=i < classes, other=-1)
            tl.store(merge + n + i, tl.where(class_row == row, 1.0, 0.0), mask=i < classes)


def merge_rows(
    scores: Tensor, keys: Tensor, blocks: Sequence[Sequence[BlockRows]], lists: Sequence[JointList], has_class: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge the tokens of all images, without waiting for the device.

    Args:
        scores: N, of all images' tokens.
        keys: N×c.
        blocks: The blocks of each image.
        lists: Where the dominant tokens of several blocks are listed together.
        has_class: Whether each block has a CLS token, and so the weights a column for it.

    Returns:
        K, the positions that the rows fill, counted within each image; K, the token of each row, −1 for CLS; and the
        weights of all images, each K_i×(N_i + CLS tokens), flattened and one after another.
    """
    device, flat = scores.device, [block for each in blocks for block in each]
    counts = [sum(block.count for block in each) for each in blocks]
    tokens = [sum(block.size for block in each) for each in blocks]
    images, first_row, first_block, first_weight = list[int](), 0, 0, 0
    for each, count, total in zip(blocks, counts, tokens, strict=True):
        classes = len(each) * has_class
        images += [first_row, count, each[0].first_of_image, total, classes, first_block, first_weight]
        first_row, first_block = first_row + count, first_block + len(each)
        first_weight += count * (total + classes)
    table = numbers_on_device(tuple(number for block in flat for number in block.numbers()), device)
    walks, begin = list[int](), 0
    for together in lists:
        walks += [begin, len(together.tokens), together.first_row, together.first_of_image]
        begin += len(together.tokens)
    walked = numbers_on_device(tuple(token for together in lists for token in together.tokens) or (0,), device)
    scores, keys = scores.detach().contiguous(), keys.detach().contiguous()
    is_dominant, row_of = torch.empty(2, len(scores), dtype=torch.int32, device=device)
    positions, rows = torch.empty(2, first_row, dtype=torch.long, device=device)
    merge = torch.empty(first_weight, dtype=torch.float32, device=device)
    tiles = triton.cdiv(max(block.size for block in flat), TILE)
    launch(find_dominant, (tiles, len(flat)), scores, table, is_dominant, tile=TILE, num_warps=4)
    launch(
        list_rows,
        (len(flat) + len(lists),),
        is_dominant,
        table,
        numbers_on_device(tuple(walks) or (0,), device),
        walked,
        row_of,
        rows,
        positions,
        len(flat),
        chunk=CHUNK,
        num_warps=4,
    )
    launch(
        join_targets,
        (tiles, len(flat)),
        keys,
        table,
        rows,
        row_of,
        keys.stride(0),
        keys.shape[1],
        tile=TILE,
        depth=DEPTH,
        num_warps=8,
    )
    launch(
        write_weights,
        (max(counts), len(blocks)),
        row_of,
        rows,
        numbers_on_device(tuple(images), device, torch.long),
        table,
        merge,
        chunk=CHUNK,
        num_warps=4,
    )
    return positions, rows, merge
