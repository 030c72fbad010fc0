"""The mask and the positions of a call that adds tokens to padded prompts on a pruned cache, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from eadp.core.triton.launch import launch

CELLS = 1_024
"""Columns of a mask per program."""


@triton.jit
def extend_rows(
    valid,
    mask,
    ids,
    shift,
    physical_mask,
    positions,
    prefilled,
    offset,
    width,
    start,
    tokens,
    row_of_valid,
    row_of_mask,
    row_of_ids,
    axis_of_ids,
    has_valid: tl.constexpr,
    has_ids: tl.constexpr,
    axes: tl.constexpr,
    cells: tl.constexpr,
):
    """Write a part of one row of the mask; the first part also writes the positions of the row. Grid: rows × parts.

    `row_of_…` and `axis_of_…` are strides. `axes` is 0 where no positions are wanted.
    """
    row = tl.program_id(0)
    column = tl.program_id(1) * cells + tl.arange(0, cells)
    is_prefilled = column < prefilled
    is_new = (column >= prefilled) & (column < width)
    value = (tl.load(mask + row * row_of_mask + column + offset, mask=is_new, other=1) != 0).to(tl.int32)
    if has_valid:
        value = tl.where(is_prefilled, tl.load(valid + row * row_of_valid + column, mask=is_prefilled, other=1), value)
    tl.store(physical_mask + row * width + column, value.to(physical_mask.dtype.element_ty), mask=is_prefilled | is_new)
    if axes > 0:
        if tl.program_id(1) == 0:
            behind = tl.load(shift + row)
            for axis in range(axes):
                for token in range(tokens):
                    place = tl.full((), 0, tl.int64) + start + token
                    if has_ids:
                        place = tl.load(ids + axis * axis_of_ids + row * row_of_ids + token)
                    tl.store(positions + (axis * tl.num_programs(0) + row) * tokens + token, place - behind)


def extend(
    valid: Tensor | None,
    mask: Tensor,
    prefilled: int,
    offset: int,
    dtype: torch.dtype,
    shift: Tensor | None = None,
    ids: Tensor | None = None,
    start: int = 0,
    tokens: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """Build the mask over the physical columns, and move positions back.

    Args:
        valid: B×prefilled, false for padding; None where none of these columns is padding.
        mask: B×logical, 0 or false for padding.
        prefilled: How many physical columns pruned prefills wrote.
        offset: The logical length minus the physical one.
        dtype: Type of the mask that is built.
        shift: B, how far positions are behind the logical ones; None where no positions are wanted.
        ids: …×B×tokens, the logical positions; None where they are counted from `start`.
        start: The logical position of the first new token.
        tokens: The number of new tokens.

    Returns:
        B×(logical − offset), the mask, and …×B×tokens, the positions; None where none are wanted.
    """
    rows, width = len(mask), mask.shape[1] - offset
    built = torch.empty(rows, width, dtype=dtype, device=mask.device)
    positions = None
    if shift is not None:
        leading = () if ids is None else ids.shape[:-2]
        positions = torch.empty(*leading, rows, tokens, dtype=torch.long, device=mask.device)
    if ids is not None:
        ids = ids.expand(*ids.shape[:-2], rows, -1)
    launch(
        extend_rows,
        (rows, triton.cdiv(width, CELLS)),
        _as_numbers(built if valid is None else valid),
        _as_numbers(mask),
        built if ids is None else ids,
        built if shift is None else shift,
        _as_numbers(built),
        built if positions is None else positions,
        prefilled,
        offset,
        width,
        start,
        tokens,
        0 if valid is None else valid.stride(0),
        mask.stride(0),
        0 if ids is None else ids.stride(-2),
        0 if ids is None or ids.ndim == 2 else ids.stride(0),
        has_valid=valid is not None,
        has_ids=ids is not None,
        axes=0 if positions is None else positions.numel() // max(1, rows * tokens),
        cells=CELLS,
        num_warps=4,
    )
    return built, positions


def _as_numbers(flags: Tensor) -> Tensor:
    """Read a mask of truth values as numbers."""
    return flags.view(torch.uint8) if flags.dtype == torch.bool else flags
