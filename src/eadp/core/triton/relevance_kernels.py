"""The kernels of stage 1; `relevance.py` launches them and builds the table that they read.

The table has ten numbers per block: its first token and size, the first row, the number of words and of pooled vectors
of its question, its first segment and their number, the first block of its image and their number, and the image. Three
numbers per segment follow: its first word, the number of words, and how many to keep.
"""

from __future__ import annotations

import triton
import triton.language as tl

from eadp.core import ties

WORD_TIE_MARGIN = tl.constexpr(ties.WORD_TIE_MARGIN)


@triton.jit
def word_cosines(
    visual,
    text,
    table,
    cosines,
    sign,
    stride_token,
    stride_text,
    tokens,
    channels,
    tile: tl.constexpr,
    depth: tl.constexpr,
):
    """Compute sign · cos(t_i, v_j) (Eq. 2 and 3) of one tile. Grid: tiles of tokens × tiles of words × blocks.

    The norms are summed in the same pass, in full float32. A row of zeros has a cosine of 0; one that is not finite has
    NaN.
    """
    table += tl.program_id(2) * 10
    start = tl.load(table)
    n = tl.load(table + 1)
    first_text = tl.load(table + 2)
    texts = tl.load(table + 3) + tl.load(table + 4)
    i = tl.program_id(1) * tile + tl.arange(0, tile)
    j = tl.program_id(0) * tile + tl.arange(0, tile)
    if (tl.program_id(1) * tile < texts) & (tl.program_id(0) * tile < n):
        products = tl.zeros((tile, tile), tl.float32)
        i_squares = tl.zeros((tile,), tl.float32)
        j_squares = tl.zeros((tile,), tl.float32)
        i_offsets = (first_text + i).to(tl.int64) * stride_text
        j_offsets = (start + j).to(tl.int64) * stride_token
        for first in range(0, channels, depth):
            c = first + tl.arange(0, depth)
            a = tl.load(
                text + i_offsets[:, None] + c[None, :], mask=(i < texts)[:, None] & (c < channels)[None, :], other=0.0
            ).to(tl.float32)
            b = tl.load(
                visual + j_offsets[:, None] + c[None, :], mask=(j < n)[:, None] & (c < channels)[None, :], other=0.0
            ).to(tl.float32)
            products += tl.dot(a, tl.trans(b), input_precision="ieee")
            i_squares += tl.sum(a * a, 1)
            j_squares += tl.sum(b * b, 1)
        i_norms = tl.sqrt(i_squares)
        j_norms = tl.sqrt(j_squares)
        # A norm minus itself is 0, or NaN if the norm is not finite.
        i_divisors = tl.where(i_norms == 0.0, 1.0, i_norms) + (i_norms - i_norms)
        j_divisors = tl.where(j_norms == 0.0, 1.0, j_norms) + (j_norms - j_norms)
        cosine = sign * (products / (i_divisors[:, None] * j_divisors[None, :]))
        out = cosines + i.to(tl.int64)[:, None] * tokens + (start + j)[None, :]
        tl.store(out, cosine, mask=(i < texts)[:, None] & (j < n)[None, :])


@triton.jit
def word_entropies(
    cosines,
    table,
    entropies,
    tau,
    tokens,
    blocks,
    words: tl.constexpr,
    chunk: tl.constexpr,
):
    """Compute the entropy of softmax_j(c_ij / τ) (Eq. 4 and 5). Grid: tiles of words × blocks.

    With l = c/τ − max, it is log Σ e^l − Σ l·e^l / Σ e^l.
    """
    block = tl.program_id(1)
    table += block * 10
    start = tl.load(table)
    n = tl.load(table + 1)
    count = tl.load(table + 3)
    i = tl.program_id(0) * words + tl.arange(0, words)
    rows = cosines + i.to(tl.int64)[:, None] * tokens + start
    top = tl.full((words,), float("-inf"), tl.float32)
    for first in range(0, n, chunk):
        j = first + tl.arange(0, chunk)
        mask = (i < count)[:, None] & (j < n)[None, :]
        top = tl.maximum(top, tl.max(tl.load(rows + j[None, :], mask=mask, other=float("-inf")) / tau, 1))
    top = tl.where(top > float("-inf"), top, 0.0)
    total = tl.zeros((words,), tl.float32)
    weighted = tl.zeros((words,), tl.float32)
    for first in range(0, n, chunk):
        j = first + tl.arange(0, chunk)
        mask = (i < count)[:, None] & (j < n)[None, :]
        logit = tl.load(rows + j[None, :], mask=mask, other=0.0) / tau - top[:, None]
        mass = tl.where(mask, tl.exp(logit), 0.0)
        total += tl.sum(mass, 1)
        weighted += tl.sum(mass * logit, 1)
    entropy = tl.log(total) - weighted / total
    tl.store(entropies + i * blocks + block, entropy, mask=i < count)


@triton.jit
def _keep_words(dispersion, entropies, i, row, count, keep, block, blocks, by_floor: tl.constexpr):
    """Find the words of lowest entropy (Eq. 6): fewer than `keep` words have clearly less (by more than the margin of
    ties), or, by floor, have less or come before where they tie."""
    before = tl.zeros(i.shape, tl.int32)
    for k in range(0, count):
        other = tl.load(entropies + (row + k) * blocks + block)
        if by_floor:
            before += ((other < dispersion) | ((other == dispersion) & (k < i))).to(tl.int32)
        else:
            before += (other + WORD_TIE_MARGIN * tl.abs(other) < dispersion).to(tl.int32)
    return (i < count) & (before < keep)


@triton.jit
def fuse_scores(
    cosines,
    entropies,
    table,
    kept,
    weights,
    dense_score,
    global_score,
    fused,
    extremes,
    mu,
    gamma,
    theta,
    tokens,
    blocks,
    has_words: tl.constexpr,
    has_pooled: tl.constexpr,
    by_floor: tl.constexpr,
    aggregation: tl.constexpr,
    words: tl.constexpr,
    chunk: tl.constexpr,
):
    """Filter and weight the words (Eq. 6 and 7), score the tokens (Eq. 2, 8 and 9). Grid: tiles of tokens × blocks.

    `extremes` receives the lowest and highest score of each tile; NaN if a score is not a number.
    """
    block = tl.program_id(1)
    segment = table + blocks * 10
    table += block * 10
    start = tl.load(table)
    n = tl.load(table + 1)
    j = tl.program_id(0) * chunk + tl.arange(0, chunk)
    columns = (start + j)[None, :]
    is_token = j < n
    dense = tl.zeros((chunk,), tl.float32)
    whole = tl.zeros((chunk,), tl.float32)
    if has_words:
        segments = tl.load(table + 6)
        segment += tl.load(table + 5) * 3
        for s in range(0, segments):
            row = tl.load(segment + s * 3)
            count = tl.load(segment + s * 3 + 1)
            keep = tl.load(segment + s * 3 + 2)
            i = tl.arange(0, words)
            h = tl.load(entropies + (row + i) * blocks + block, mask=i < count, other=0.0)
            is_kept = _keep_words(h, entropies, i, row, count, keep, block, blocks, by_floor)
            offsets = (row + i).to(tl.int64)[:, None] * tokens + columns
            mask = (i < count)[:, None] & is_token[None, :]
            c = tl.load(cosines + offsets, mask=mask, other=0.0)
            if aggregation == 0:  # neg_entropy
                logit = (-h / gamma)[:, None] + tl.zeros_like(c)
            elif aggregation == 1:  # inverse_entropy
                logit = c / (gamma * (h + 1e-6))[:, None]
            elif aggregation == 2:  # inverse_entropy_flat
                logit = (1.0 / (gamma * (h + 1e-6)))[:, None] + tl.zeros_like(c)
            else:
                mean = tl.sum(tl.where(is_kept, h, 0.0), 0) / tl.sum(is_kept.to(tl.float32), 0)
                logit = (theta * (mean - h))[:, None] + tl.zeros_like(c)
            if aggregation == 3:  # gated
                alpha = tl.where(is_kept[:, None], 1.0 / (1.0 + tl.exp(-logit)), 0.0)
                alpha = alpha / (tl.sum(alpha, 0) + 1e-6)[None, :]
            else:
                logit = tl.where(is_kept[:, None], logit, float("-inf"))
                mass = tl.exp(logit - tl.max(logit, 0)[None, :])
                alpha = mass / tl.sum(mass, 0)[None, :]
            tl.store(weights + offsets, alpha, mask=mask)
            if tl.program_id(0) == 0:
                tl.store(kept + (row + i) * blocks + block, is_kept, mask=i < count)
            dense += tl.sum(tl.where(mask, alpha * c, 0.0), 0)
        dense = dense / segments
        tl.store(dense_score + start + j, dense, mask=is_token)
    if has_pooled:
        first_pooled = tl.load(table + 3)
        pooled = tl.load(table + 4)
        for p in range(0, pooled):
            row_of_pooled = (first_pooled + p).to(tl.int64) * tokens
            whole += tl.load(cosines + row_of_pooled + start + j, mask=is_token, other=0.0)
        whole = whole / pooled
        tl.store(global_score + start + j, whole, mask=is_token)
    if has_words & has_pooled:
        score = tl.where(mu < 0.5, dense + mu * (whole - dense), whole - (1.0 - mu) * (whole - dense))
    elif has_words:
        score = (1.0 - mu) * dense
    else:
        score = mu * whole
    tl.store(fused + start + j, score, mask=is_token)
    nan = tl.sum(tl.where(is_token & (score != score), 1, 0), 0)
    low = tl.where(nan > 0, float("nan"), tl.min(tl.where(is_token, score, float("inf")), 0))
    high = tl.where(nan > 0, float("nan"), tl.max(tl.where(is_token, score, float("-inf")), 0))
    extremes += (block * tl.num_programs(0) + tl.program_id(0)) * 2
    tl.store(extremes, low)
    tl.store(extremes + 1, high)


@triton.jit
def normalize_scores(
    fused,
    extremes,
    table,
    score,
    is_constant,
    numerator_epsilon,
    denominator_epsilon,
    constant_range,
    by_block: tl.constexpr,
    chunk: tl.constexpr,
):
    """Apply the min-max normalization over each image or each block (Eq. 10). Grid: tiles of tokens × blocks."""
    block = tl.program_id(1)
    tiles = tl.num_programs(0)
    table += block * 10
    start = tl.load(table)
    n = tl.load(table + 1)
    first_block = tl.load(table + 7)
    count = tl.load(table + 8)
    image = tl.load(table + 9)
    if by_block:
        first_block = block
        count = 1
        image = block
    low = tl.full((), float("inf"), tl.float32)
    high = tl.full((), float("-inf"), tl.float32)
    nan = tl.zeros((), tl.int32)
    for first in range(0, count * tiles, chunk):
        k = first + tl.arange(0, chunk)
        where = extremes + (first_block * tiles + k) * 2
        lows = tl.load(where, mask=k < count * tiles, other=float("inf"))
        highs = tl.load(where + 1, mask=k < count * tiles, other=float("-inf"))
        nan += tl.sum((lows != lows).to(tl.int32), 0)
        low = tl.minimum(low, tl.min(lows, 0))
        high = tl.maximum(high, tl.max(highs, 0))
    low = tl.where(nan > 0, float("nan"), low)
    span = high - low
    j = tl.program_id(0) * chunk + tl.arange(0, chunk)
    values = tl.load(fused + start + j, mask=j < n, other=0.0)
    values = (values - low + numerator_epsilon) / (span + denominator_epsilon)
    tl.store(score + start + j, tl.where(span <= constant_range, 1.0, values), mask=j < n)
    if (block == first_block) & (tl.program_id(0) == 0):
        tl.store(is_constant + image, span <= constant_range)
