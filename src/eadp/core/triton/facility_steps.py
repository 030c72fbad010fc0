"""The steps of greedy algorithms that kernels share, most of facility location. Each walks a block's tokens in chunks.

Gains are kept in float64. What is added to or subtracted from them is summed in float64, or, where float64 is slow
(`compensated`), as an unevaluated sum of two float32 numbers: products are split into halves of 12 bits, whose products
are exact, and every sum keeps its own rounding error.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def find_best(gains, n, chunk: tl.constexpr):
    """Return the lowest index of the largest gain, and that gain."""
    best_gain = tl.full((), float("-inf"), tl.float64)
    best = tl.zeros((), tl.int32)
    for first in range(0, n, chunk):
        u = first + tl.arange(0, chunk)
        gain = tl.load(gains + u, mask=u < n, other=float("-inf"))
        top = tl.max(gain, 0)
        where = tl.min(tl.where(gain == top, u, 2147483647), 0)
        best = tl.where(top > best_gain, where, best)
        best_gain = tl.maximum(best_gain, top)
    return best, best_gain


@triton.jit
def describe_block(weights, highest, covered, n, noise_share: tl.constexpr, chunk: tl.constexpr):
    """Start the coverage at 0; return F(all tokens), how much rounding can change a similarity, and if all is valid."""
    full = tl.zeros((), tl.float64)
    largest = tl.zeros((), tl.float64)
    invalid = tl.zeros((), tl.int32)
    for first in range(0, n, chunk):
        u = first + tl.arange(0, chunk)
        w = tl.load(weights + u, mask=u < n, other=0.0).to(tl.float64)
        top = tl.load(highest + u, mask=u < n, other=0.0)
        invalid += tl.sum((top != top).to(tl.int32), 0)
        full += tl.sum(w * top, 0)
        largest = tl.maximum(largest, tl.max(tl.where(w > 0.0, top, 0.0), 0))
        # A column without weight counts as covered, so that it never costs a pass.
        tl.store(covered + u, tl.where(w > 0.0, 0.0, float("inf")), mask=u < n)
    return full, noise_share * largest, (invalid == 0) & (full > 0.0) & (full < float("inf"))


@triton.jit
def raised_weight(row_of, weights, covered, n, stride_entry, noise, chunk: tl.constexpr):
    """Sum the weights of the columns whose coverage this row would raise by more than rounding."""
    raised = tl.zeros((), tl.float64)
    for first in range(0, n, chunk):
        j = first + tl.arange(0, chunk)
        row = tl.load(row_of + j.to(tl.int64) * stride_entry, mask=j < n, other=0.0).to(tl.float64)
        c = tl.load(covered + j, mask=j < n, other=float("inf")).to(tl.float64)
        w = tl.load(weights + j, mask=j < n, other=0.0).to(tl.float64)
        raised += tl.sum(tl.where(row - c > noise, w, 0.0), 0)
    return raised


@triton.jit
def first_tied(gains, row_of_best, best, best_gain, n, stride_entry, noise, raised, tie, chunk: tl.constexpr):
    """Return the lowest index that ties with the best candidate."""
    tie_floor = best_gain - tie * best_gain
    rounding_floor = best_gain - noise * raised
    copy_floor = tl.load(row_of_best + best.to(tl.int64) * stride_entry).to(tl.float64) - noise
    pick = best
    for first in range(0, n, chunk):
        u = first + tl.arange(0, chunk)
        gain = tl.load(gains + u, mask=u < n, other=float("-inf"))
        row = tl.load(row_of_best + u.to(tl.int64) * stride_entry, mask=u < n, other=0.0).to(tl.float64)
        tied = (gain >= tie_floor) | ((gain >= rounding_floor) & (row >= copy_floor))
        pick = tl.minimum(pick, tl.min(tl.where(tied, u, 2147483647), 0))
    return pick


@triton.jit
def raise_coverage(
    row_of, weights, covered, after, changed, before, n, stride_entry, copies: tl.constexpr, chunk: tl.constexpr
):
    """Update the coverage, `after` = max(`covered`, row); return how many columns rose, and the gain.

    The columns that rose and their former coverage are listed in `changed` and `before`. With `copies`, `after` is
    another buffer than `covered` and also receives the columns that did not rise.
    """
    count = tl.zeros((), tl.int32)
    gain = tl.zeros((), tl.float64)
    for first in range(0, n, chunk):
        j = first + tl.arange(0, chunk)
        row = tl.load(row_of + j.to(tl.int64) * stride_entry, mask=j < n, other=0.0)
        row = row.to(covered.dtype.element_ty)
        c = tl.load(covered + j, mask=j < n, other=float("inf"))
        w = tl.load(weights + j, mask=j < n, other=0.0).to(tl.float64)
        rises = (row > c).to(tl.int32)
        position = count + tl.cumsum(rises, 0) - 1
        tl.store(changed + position, j, mask=rises > 0)
        tl.store(before + position, c, mask=rises > 0)
        if copies:
            tl.store(after + j, tl.maximum(row, c), mask=j < n)
        else:
            tl.store(after + j, row, mask=rises > 0)
        gain += tl.sum(tl.where(rises > 0, (row.to(tl.float64) - c.to(tl.float64)) * w, 0.0), 0)
        count += tl.sum(rises, 0)
    return count, gain


@triton.jit
def _leading_bits(x):
    """Return the leading 12 bits of float32 numbers; the rest, x minus these, has at most 12 bits, too."""
    return (x.to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)


@triton.jit
def _add_product(high, low, weight, rise, rest):
    """Add weight · (rise + rest) to high + low, all float32 and at least 0, with a relative error of about 2^-35."""
    w_high = _leading_bits(weight)
    r_high = _leading_bits(rise)
    w_low = weight - w_high
    r_low = rise - r_high
    leading = w_high * r_high  # exact, as are the two products of a leading and a trailing half
    total = high + leading
    part = total - high
    low += ((high - (total - part)) + (leading - part)) + (
        (w_high * r_low + w_low * r_high) + (w_low * r_low + weight * rest)
    )
    high = total + low
    return high, low - (high - total)


@triton.jit
def _loss(tile, old, new):
    """Return max(0, min(tile, new) − old) as an unevaluated sum of two float32 numbers."""
    value = tl.minimum(tile, new)
    rise = value - old
    # Exact, because value ≥ old ≥ 0 where the rise is above 0.
    rest = (value - rise) - old
    return tl.where(rise > 0.0, rise, 0.0), tl.where(rise > 0.0, rest, 0.0)


@triton.jit
def dense_gains(
    matrix,
    weights,
    covered,
    u,
    n,
    stride_candidate,
    stride_column,
    compensated: tl.constexpr,
    columns: tl.constexpr,
):
    """Compute gain(u) = Σ_j w_j · max(0, S_uj − C_j) (Eq. 14) of a chunk of candidates."""
    u_offsets = u.to(tl.int64) * stride_candidate
    total = tl.zeros(u.shape, tl.float64)
    if compensated:
        high = tl.zeros(u.shape, tl.float32)
        low = tl.zeros(u.shape, tl.float32)
        for start in range(0, n, columns):
            for k in tl.static_range(columns):
                j = start + k
                c = tl.load(covered + j, mask=j < n, other=float("inf"))
                w = tl.load(weights + j, mask=j < n, other=0.0)
                # A column that is covered entirely has no rise; ∞ would not cancel in the differences.
                is_open = c < float("inf")
                entry = matrix + u_offsets + j.to(tl.int64) * stride_column
                tile = tl.load(entry, mask=u < tl.where(is_open, n, 0), other=0.0).to(tl.float32)
                rise, rest = _loss(tile, tl.where(is_open, c, 0.0), float("inf"))
                high, low = _add_product(high, low, w, rise, rest)
        total = high.to(tl.float64) + low.to(tl.float64)
    else:
        for start in range(0, n, columns):
            j = start + tl.arange(0, columns)
            tile = tl.load(
                matrix + u_offsets[None, :] + j.to(tl.int64)[:, None] * stride_column,
                mask=(j < n)[:, None] & (u < n)[None, :],
                other=0.0,
            )
            c = tl.load(covered + j, mask=j < n, other=float("inf"))
            w = tl.load(weights + j, mask=j < n, other=0.0).to(tl.float64)
            rise = tl.maximum(tile.to(tl.float64) - c[:, None].to(tl.float64), 0.0)
            total += tl.sum(rise * w[:, None], 0)
    return total


@triton.jit
def lost_gains(
    matrix,
    weights,
    changed,
    before,
    after,
    u,
    count,
    n,
    stride_candidate,
    stride_column,
    compensated: tl.constexpr,
    columns: tl.constexpr,
):
    """Compute what the columns that rose have taken from the gains of a chunk of candidates.

    Where the coverage of column j rose from o to n, candidate u loses w_j · max(0, min(S_uj, n) − o).
    """
    u_offsets = u.to(tl.int64) * stride_candidate
    lost = tl.zeros(u.shape, tl.float64)
    if compensated:
        high = tl.zeros(u.shape, tl.float32)
        low = tl.zeros(u.shape, tl.float32)
        for start in range(0, count, columns):
            for k in tl.static_range(columns):
                is_column = start + k < count
                j = tl.load(changed + start + k, mask=is_column, other=0)
                old = tl.load(before + start + k, mask=is_column, other=0.0)
                new = tl.load(after + j, mask=is_column, other=0.0)
                w = tl.load(weights + j, mask=is_column, other=0.0)
                entry = matrix + u_offsets + j.to(tl.int64) * stride_column
                tile = tl.load(entry, mask=u < tl.where(is_column, n, 0), other=0.0).to(tl.float32)
                rise, rest = _loss(tile, old, new)
                high, low = _add_product(high, low, w, rise, rest)
        lost = high.to(tl.float64) + low.to(tl.float64)
    else:
        for start in range(0, count, columns):
            k = start + tl.arange(0, columns)
            j = tl.load(changed + k, mask=k < count, other=0)
            old = tl.load(before + k, mask=k < count, other=0.0).to(tl.float64)
            new = tl.load(after + j, mask=k < count, other=0.0).to(tl.float64)
            w = tl.load(weights + j, mask=k < count, other=0.0).to(tl.float64)
            tile = tl.load(
                matrix + u_offsets[None, :] + j.to(tl.int64)[:, None] * stride_column,
                mask=(k < count)[:, None] & (u < n)[None, :],
                other=0.0,
            ).to(tl.float64)
            lost += tl.sum(tl.maximum(tl.minimum(tile, new[:, None]) - old[:, None], 0.0) * w[:, None], 0)
    return lost


@triton.jit
def append_lowest_indices(left, order, done, limit, n, takes_any, chunk: tl.constexpr):
    """Fill the order with tokens that were not picked, in the order of their indices; return how many there are then.

    `left` is −∞ for tokens that were picked. With `takes_any`, all tokens count as not picked.
    """
    for first in range(0, n, chunk):
        if done < limit:
            j = first + tl.arange(0, chunk)
            is_left = tl.load(left + j, mask=j < n, other=float("-inf")) > float("-inf")
            is_left = ((j < n) & (is_left | takes_any)).to(tl.int32)
            position = done + tl.cumsum(is_left, 0) - 1
            tl.store(order + position, j.to(tl.int64), mask=(is_left > 0) & (position < limit))
            done = tl.minimum(limit, done + tl.sum(is_left, 0))
    return done
