"""Weighted sums of rows for all images at once, and where they go: new row k = Σ_j weights[k, j] · row j.

The table has eight numbers per image: the first of its K new rows among those of all images, K, where its weights
begin, N, the further rows E that its weights have columns for, the first of its tokens, the first further row, and the
first of its kept columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from eadp.core.triton.launch import launch

ROWS = 16
"""New rows that one program computes."""

CHANNELS = 64
"""Channels that one program computes."""

DEPTH = 32
"""Rows that are read at a time."""

CHUNK = 1024
"""Weights, or channels, that are read at a time where a row is placed."""


@dataclass(frozen=True)
class Places:
    """Where new rows go: to the columns that stay, among the rows of all prompts one after another.

    Attributes:
        kept: The column that each new row fills, as a position among the columns of all prompts; int64.
        fill: The physical column of each of these columns; int64.
        length: The number of columns of a prompt.
        physical: The number of its physical columns.
        numbers: The number of visual tokens up to each physical column of all prompts, for rows of visual tokens only.
    """

    kept: Tensor
    fill: Tensor
    length: int
    physical: int
    numbers: Tensor | None = None


@triton.jit
def _place(kept_columns, fill, number, length, physical, mask):
    column = tl.load(kept_columns + number, mask=mask, other=0)
    return (column // length) * physical + tl.load(fill + column, mask=mask, other=0)


@triton.jit
def mix_rows(
    merge,
    groups,
    sources,
    more_sources,
    columns,
    visual_numbers,
    kept_columns,
    fill,
    numbers,
    mixed,
    stride_source,
    stride_more,
    stride_mixed,
    channels,
    length,
    physical,
    by_column: tl.constexpr,
    by_number: tl.constexpr,
    has_more: tl.constexpr,
    is_placed: tl.constexpr,
    is_renumbered: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    depth: tl.constexpr,
):
    """Compute a tile of the sums, in float32. Grid: tiles of rows × tiles of channels × images.

    Rows of a tile are read only where one of its weights is not 0.
    """
    groups += tl.program_id(2) * 8
    first_row = tl.load(groups)
    count = tl.load(groups + 1)
    n = tl.load(groups + 3)
    total = n + tl.load(groups + 4)
    first_token = tl.load(groups + 5)
    first_more = tl.load(groups + 6)
    first_kept = tl.load(groups + 7)
    k = tl.program_id(0) * tile + tl.arange(0, tile)
    c = tl.program_id(1) * width + tl.arange(0, width)
    if tl.program_id(0) * tile < count:
        weights = merge + tl.load(groups + 2) + k.to(tl.int64)[:, None] * total
        sums = tl.zeros((tile, width), tl.float32)
        for first in range(0, total, depth):
            j = first + tl.arange(0, depth)
            own = tl.load(weights + j[None, :], mask=(k < count)[:, None] & (j < total)[None, :], other=0.0)
            own = own.to(tl.float32)
            if tl.max(tl.max((own != 0.0).to(tl.int32), 1), 0) > 0:
                row = first_token + j
                if by_column:
                    row = tl.load(columns + row, mask=j < n, other=0)
                if by_number:
                    row = tl.load(visual_numbers + row, mask=j < n, other=0)
                offsets = row.to(tl.int64)[:, None] * stride_source + c[None, :]
                values = tl.load(sources + offsets, mask=(j < n)[:, None] & (c < channels)[None, :], other=0.0)
                values = values.to(tl.float32)
                if has_more:
                    offsets = (first_more + j - n).to(tl.int64)[:, None] * stride_more + c[None, :]
                    is_more = ((j >= n) & (j < total))[:, None] & (c < channels)[None, :]
                    values += tl.load(more_sources + offsets, mask=is_more, other=0.0).to(tl.float32)
                sums += tl.dot(own, values, input_precision="ieee")
        place = first_row + k
        if is_placed:
            place = _place(kept_columns, fill, first_kept + k, length, physical, k < count)
        if is_renumbered:
            place = tl.load(numbers + place, mask=k < count, other=1) - 1
        out = mixed + place.to(tl.int64)[:, None] * stride_mixed + c[None, :]
        tl.store(out, sums.to(mixed.dtype.element_ty), mask=(k < count)[:, None] & (c < channels)[None, :])


@triton.jit
def place_rows(
    merge,
    groups,
    columns,
    sources,
    projected,
    kept_columns,
    fill,
    mixed,
    channels,
    length,
    physical,
    chunk: tl.constexpr,
):
    """Put one new row into its place: the projected sum, or the token's own row where the sum has no other part.

    Grid: rows × images.
    """
    groups += tl.program_id(1) * 8
    if tl.program_id(0) < tl.load(groups + 1):
        row = tl.program_id(0)
        n = tl.load(groups + 3)
        total = n + tl.load(groups + 4)
        merge += tl.load(groups + 2) + row.to(tl.int64) * total
        parts = 0
        own = tl.full((), -1, tl.int64)
        for first in range(0, total, chunk):
            j = first + tl.arange(0, chunk)
            weights = tl.load(merge + j, mask=j < total, other=0.0)
            parts += tl.sum((weights != 0.0).to(tl.int32), 0)
            own = tl.maximum(own, tl.max(tl.where((weights == 1.0) & (j < n), j, -1).to(tl.int64), 0))
        place = _place(kept_columns, fill, tl.load(groups + 7) + row, length, physical, True)
        mixed += place.to(tl.int64) * channels
        is_own = (parts == 1) & (own >= 0)
        source = tl.load(columns + tl.load(groups + 5) + own, mask=is_own, other=0).to(tl.int64)
        projected += (tl.load(groups) + row).to(tl.int64) * channels
        for first in range(0, channels, chunk):
            c = first + tl.arange(0, chunk)
            new = tl.load(projected + c, mask=(c < channels) & (is_own == 0), other=0.0).to(mixed.dtype.element_ty)
            same = tl.load(sources + source * channels + c, mask=(c < channels) & is_own, other=0.0)
            tl.store(mixed + c, tl.where(is_own, same, new), mask=c < channels)


@dataclass(frozen=True)
class RowMixer:
    """The weights of all images.

    Attributes:
        weights: The weights of all images, each K×(N + E), flattened and one after another; float32.
        table: G×8, int64, as described above.
        counts: K of each image.
        columns: The columns of all images' tokens, as positions among the columns of all prompts; int64.
    """

    weights: Tensor
    table: Tensor
    counts: tuple[int, ...]
    columns: Tensor

    def mix(
        self,
        sources: Tensor,
        more_sources: Tensor | None,
        out: Tensor,
        places: Places | None,
        *,
        by_column: bool,
        visual_numbers: Tensor | None = None,
    ) -> None:
        """Compute the sums.

        Args:
            sources: Rows of the same width as `out`: of all images' tokens, of all columns, or of all visual tokens.
            more_sources: The further rows of all images. None: they count as zero.
            out: Where the sums are written.
            places: Which of its rows they fill. None: one after another.
            by_column: Whether the sources are rows of columns, not of the images' tokens.
            visual_numbers: The visual token at each column, if the sources are rows of all visual tokens.
        """
        dummy = self.columns
        launch(
            mix_rows,
            (triton.cdiv(max(self.counts), ROWS), triton.cdiv(out.shape[1], CHANNELS), len(self.counts)),
            self.weights,
            self.table,
            sources,
            sources if more_sources is None else more_sources,
            self.columns,
            dummy if visual_numbers is None else visual_numbers,
            dummy if places is None else places.kept,
            dummy if places is None else places.fill,
            dummy if places is None or places.numbers is None else places.numbers,
            out,
            sources.stride(0),
            0 if more_sources is None else more_sources.stride(0),
            out.stride(0),
            out.shape[1],
            1 if places is None else places.length,
            1 if places is None else places.physical,
            by_column=by_column,
            by_number=visual_numbers is not None,
            has_more=more_sources is not None,
            is_placed=places is not None,
            is_renumbered=places is not None and places.numbers is not None,
            tile=ROWS,
            width=CHANNELS,
            depth=DEPTH,
            num_warps=4,
        )

    def place(self, projected: Tensor, sources: Tensor, out: Tensor, places: Places) -> None:
        """Put projected sums into their places; a row that is a token's own keeps that token's row.

        Args:
            projected: K×d, of all images.
            sources: The rows of all columns, d wide.
            out: The rows of all physical columns, d wide.
            places: Which of them the sums fill.
        """
        launch(
            place_rows,
            (max(self.counts), len(self.counts)),
            self.weights,
            self.table,
            self.columns,
            sources.contiguous(),
            projected.contiguous(),
            places.kept,
            places.fill,
            out,
            out.shape[1],
            places.length,
            places.physical,
            chunk=CHUNK,
            num_warps=4,
        )

    def new_rows(self, like: Tensor) -> Tensor:
        """Return uninitialised rows for all sums."""
        return torch.empty(sum(self.counts), like.shape[1], dtype=like.dtype, device=like.device)
