"""The rows that VisionZip sends: their order, and how they are merged on a device without waiting for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eadp.core import VisualTokens, rank_descending
from eadp.core.block_layout import BlockLayout
from eadp.core.similarity import scale_rows
from eadp.methods._merging import has_mosaic, order_blocks

DOMINANT, CLASS, CONTEXTUAL = range(3)
"""Kinds of rows, in the order in which the crops of a mosaic send them."""


def order_rows(tokens: VisualTokens, rows: Tensor, kinds: list[list[int]]) -> Tensor:
    """Return the permutation that puts rows, given block by block, into the order of the language model.

    kinds: the kind of each row, per block.
    """
    is_mosaic, rank = has_mosaic(tokens), {block: n for n, block in enumerate(order_blocks(tokens))}
    sequence = range(len(tokens)) if tokens.sequence is None else tokens.sequence.tolist()
    sort_keys: list[tuple[int, ...]] = []
    for block, kinds_of_block in enumerate(kinds):
        for kind in kinds_of_block:
            row = len(sort_keys)
            if not is_mosaic or block == 0:
                sort_keys.append((rank[block], row))
            else:
                sort_keys.append((1, kind, sequence[int(rows[row])] if kind == DOMINANT else row))
    return torch.tensor(sorted(range(len(sort_keys)), key=sort_keys.__getitem__), dtype=torch.long)


def merge_on_device(
    tokens: VisualTokens, scores: Tensor, keys: Tensor, quotas: Sequence[int], contextual: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge the tokens of all blocks at once, without waiting for the device.

    Args:
        tokens: The visual tokens.
        scores: N, by which the dominant tokens are chosen.
        keys: N×c, by which tokens join a target.
        quotas: The rows of each block; more than none and fewer than its tokens.
        contextual: How many of them are contextual.

    Returns:
        K, the positions that the rows fill; K×(N + CLS tokens), the weights; K, the token that each row stands for, −1
        for CLS, in the order of the language model.
    """
    has_class = tokens.tower_cls is not None
    layout = BlockLayout.of(tokens.blocks, scores.device)
    plan = _RowPlan.of(layout.sizes, quotas, contextual, has_class)
    dominant, free = _divide(layout.stack(scores), layout, plan)
    own = free.gather(1, plan.places.to(free.device))
    is_row = torch.zeros_like(dominant).scatter_(1, own, True)
    weights = _weights(scale_rows(layout.stack(keys)), layout, own, is_row, plan)
    return _join(tokens, layout, plan, own, is_row, weights)


@dataclass(frozen=True)
class _RowPlan:
    """What the host knows of the rows of B blocks, Q each at most, CLS aside.

    Attributes:
        dominant: B, the number of dominant patches of each block.
        contextual: B, the number of contextual rows.
        has_class: Whether each block also sends its CLS token, before its other rows.
        places: B×Q, where each row's token is in the list of a block's free tokens followed by its dominant ones.
    """

    dominant: Sequence[int]
    contextual: Sequence[int]
    has_class: bool
    places: Tensor

    @classmethod
    def of(cls, sizes: Sequence[int], quotas: Sequence[int], contextual: Sequence[int], has_class: bool) -> _RowPlan:
        dominant = [quota - count - has_class for quota, count in zip(quotas, contextual, strict=True)]
        places = []
        for size, kept, count in zip(sizes, dominant, contextual, strict=True):
            free = size - kept
            spaced = [number * (free // count) for number in range(count)]
            places.append([*range(free, size), *spaced])
        return cls(dominant, contextual, has_class, _padded(places))


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of different lengths as a matrix; a short row repeats its last entry, an empty one has 0."""
    width = max(map(len, rows))
    return torch.tensor(
        [[*row, *[row[-1] if row else 0] * (width - len(row))] for row in rows], dtype=torch.long
    ).reshape(len(rows), width)


def _divide(scores: Tensor, layout: BlockLayout, plan: _RowPlan) -> tuple[Tensor, Tensor]:
    """B×L, which tokens are dominant; and the tokens in the order: free ones, dominant ones, padding."""
    if not layout.is_regular:
        scores = scores.where(layout.is_token, -math.inf)
    is_first = torch.arange(layout.largest) < torch.tensor(list(plan.dominant))[:, None]
    is_dominant = torch.zeros_like(scores, dtype=torch.bool).scatter_(
        1, rank_descending(scores), is_first.to(scores.device)
    )
    rank = is_dominant.to(torch.uint8)
    if not layout.is_regular:
        rank = rank.masked_fill(~layout.is_token, 2)
    return is_dominant, rank.argsort(dim=1, stable=True)


def _weights(unit_keys: Tensor, layout: BlockLayout, own: Tensor, is_row: Tensor, plan: _RowPlan) -> Tensor:
    """B×Q×L, the weights of each row: its own token, and for a target the mean of the tokens that join it."""
    device = own.device
    weights = torch.zeros(*own.shape, layout.largest, device=device).scatter_(2, own[:, :, None], 1.0)
    most = max(plan.contextual)
    if not most:
        return weights
    # A contextual row of block b is row D_b + j.
    first = torch.tensor(list(plan.dominant))[:, None]
    number = torch.arange(own.shape[1]) - first
    counts = torch.tensor(list(plan.contextual))[:, None]
    targets = own.gather(1, (first + torch.minimum(torch.arange(most), counts - 1)).clamp_min(0).to(device))
    cosine = unit_keys @ unit_keys.gather(1, targets[:, :, None].expand(-1, -1, unit_keys.shape[2])).mT
    if len(set(plan.contextual)) > 1:
        cosine = cosine.masked_fill((torch.arange(most) >= counts).to(device)[:, None], -math.inf)
    joins = ~is_row if layout.is_regular else ~is_row & layout.is_token
    members = (cosine.argmax(2)[:, None] == torch.arange(most, device=device)[:, None]) & joins[:, None]
    means = members / members.sum(2, keepdim=True).clamp_min(1)
    is_contextual = ((number >= 0) & (number < counts)).to(device)
    of_row = number.clamp(0, most - 1).to(device)[:, :, None].expand(-1, -1, layout.largest)
    return weights + means.gather(1, of_row) * is_contextual[:, :, None]


def _join(
    tokens: VisualTokens, layout: BlockLayout, plan: _RowPlan, own: Tensor, is_row: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Join the rows of all blocks in the order of the language model."""
    device, (blocks, width), largest = own.device, own.shape, layout.largest
    starts = torch.tensor([block.start for block in layout.blocks])
    # Of each row, block by block: its block, its number in the block (−1 for CLS), and its kind.
    listed = [
        (block, number, CLASS if number < 0 else DOMINANT if number < plan.dominant[block] else CONTEXTUAL)
        for block in range(blocks)
        for number in range(-int(plan.has_class), plan.dominant[block] + plan.contextual[block])
    ]
    is_class = torch.tensor([kind == CLASS for *_, kind in listed])
    flat = torch.tensor([block * width + max(number, 0) for block, number, _ in listed])
    shifts = torch.tensor([int(starts[block]) for block, *_ in listed])
    rows = own.flatten()[flat.to(device)] + shifts.to(device)
    # Row q of block b takes part with the tokens of block b only.
    dense = torch.zeros(blocks, width, blocks, largest, device=device)
    dense.diagonal(dim1=0, dim2=2).copy_(weights.permute(1, 2, 0))
    merge = dense.view(blocks * width, blocks * largest)[flat.to(device)]
    if not layout.is_regular:
        places = torch.cat([block * largest + torch.arange(size) for block, size in enumerate(layout.sizes)])
        merge = merge[:, places.to(device)]
    if plan.has_class:
        classes = torch.zeros(len(listed), blocks)
        classes[is_class, [block for block, _, kind in listed if kind == CLASS]] = 1
        merge = torch.cat([merge.masked_fill(is_class.to(device)[:, None], 0), classes.to(device)], dim=1)
        rows = rows.masked_fill(is_class.to(device), -1)
        # CLS fills the first free position of its block.
        is_free = ~is_row if layout.is_regular else ~is_row & layout.is_token
        is_row = is_row.scatter(1, is_free.to(torch.uint8).argmax(1, keepdim=True), True)
    kept = layout.unstack(is_row).to(torch.uint8).argsort(descending=True, stable=True)[: len(listed)]
    order = _order_on_device(tokens, rows, listed).to(device)
    return kept, merge[order], rows[order]


def _order_on_device(tokens: VisualTokens, rows: Tensor, listed: Sequence[tuple[int, int, int]]) -> Tensor:
    """Do as `order_rows` does. Only in a mosaic of crops does the order depend on which tokens are dominant."""
    rank = {block: number for number, block in enumerate(order_blocks(tokens))}
    if not has_mosaic(tokens):
        return torch.tensor(sorted(range(len(listed)), key=lambda row: (rank[listed[row][0]], row)))
    total = len(tokens) + len(listed)
    keys = torch.tensor(
        [row if block == 0 else total * (1 + kind) + row for row, (block, _, kind) in enumerate(listed)]
    )
    by_sequence = torch.tensor([block > 0 and kind == DOMINANT for block, _, kind in listed])
    sequence = torch.arange(len(tokens)) if tokens.sequence is None else tokens.sequence
    device = rows.device
    ranks = total * (1 + DOMINANT) + sequence.to(device)[rows.clamp_min(0)]
    return ranks.where(by_sequence.to(device), keys.to(device)).argsort()
