"""Stage 1 in four launches: the relevance of all tokens of all blocks, images and questions (Eq. 2 to 10).

`word_cosines` compares words and tokens, `word_entropies` measures how dispersed each word is over each block,
`fuse_scores` filters and weights the words and fuses the scores, `normalize_scores` applies the min-max normalization.
A table on the device says where the blocks and words lie, so one launch serves blocks and questions of any sizes.
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

TILE = 32
"""Tokens and words per tile of the cosines."""

DEPTH = 32
"""Channels that are read at a time."""

ENTROPY_WORDS = 8
"""Words per program of `word_entropies`."""

ENTROPY_TOKENS = 128
"""Tokens that it reads at a time."""

FUSED_ENTRIES = 4096
"""Words times tokens per program of `fuse_scores`."""

MOST_WORDS = 512
"""Largest number of words of a segment that fits into a program."""

AGGREGATIONS = ("neg_entropy", "inverse_entropy", "inverse_entropy_flat", "gated", "gated_softmax")
"""The aggregations that `fuse_scores` computes, in the order of its `aggregation` argument."""


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
    """Find the words of lowest entropy (Eq. 6): fewer than `keep` words have less, or come before where they tie."""
    before = tl.zeros(i.shape, tl.int32)
    for k in range(0, count):
        other = tl.load(entropies + (row + k) * blocks + block)
        before += (other < dispersion).to(tl.int32)
        if by_floor:
            before += ((other == dispersion) & (k < i)).to(tl.int32)
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


@dataclass(frozen=True)
class QuestionShape:
    """The sizes of one image's question and blocks.

    Attributes:
        blocks: The number of tokens of each block.
        segments: (number of words, number of words to keep) of each segment.
        pooled: The number of pooled vectors.
    """

    blocks: tuple[int, ...]
    segments: tuple[tuple[int, int], ...]
    pooled: int


@dataclass(frozen=True)
class Scores:
    """The results of stage 1 for all images together; rows of words count within each image's question.

    Attributes:
        cosines: (words + pooled)×N.
        entropy: words×B.
        kept: words×B.
        weights: words×N.
        dense_score: N.
        global_score: N.
        fused: N.
        score: N.
        is_constant: One boolean per image, or per block if each is normalized by itself.
    """

    cosines: Tensor
    entropy: Tensor
    kept: Tensor
    weights: Tensor
    dense_score: Tensor
    global_score: Tensor
    fused: Tensor
    score: Tensor
    is_constant: Tensor


def _table(shapes: Sequence[QuestionShape], device: torch.device) -> Tensor:
    """Return the table of blocks and segments on the device."""
    blocks: list[int] = []
    segments: list[int] = []
    token = text = block = segment = 0
    for image, shape in enumerate(shapes):
        words = sum(count for count, _ in shape.segments)
        for size in shape.blocks:
            blocks += [token, size, text, words, shape.pooled, segment, len(shape.segments)]
            blocks += [block, len(shape.blocks), image]
            token += size
        row = 0
        for count, keep in shape.segments:
            segments += [row, count, keep]
            row += count
        block += len(shape.blocks)
        segment += len(shape.segments)
        text += words + shape.pooled
    return numbers_on_device((*blocks, *segments), device)


def score_tokens(
    visual: Tensor,
    text: Tensor,
    shapes: Sequence[QuestionShape],
    *,
    sign: float,
    mu: float,
    tau: float,
    gamma: float,
    theta: float,
    aggregation: str,
    by_floor: bool,
    by_block: bool,
    epsilons: tuple[float, float],
    constant_range: float,
) -> Scores:
    """Score the tokens of several images against their questions.

    Args:
        visual: N×c, the tokens of all images, block after block.
        text: T×c, of each image first its words, segment by segment, and then its pooled vectors.
        shapes: The sizes of each image. Either all questions have words or none has, and so for pooled vectors.
        sign: Factor on the cosines.
        mu: μ.
        tau: τ.
        gamma: γ.
        theta: θ.
        aggregation: One of `AGGREGATIONS`.
        by_floor: Whether exactly as many words stay as were asked for; else those that tie with the last stay, too.
        by_block: Whether each block is normalized by itself.
        epsilons: What is added to the numerator and the denominator of the min-max normalization.
        constant_range: A map that spans no more than this is constant.

    Returns:
        The scores and all intermediate results.
    """
    visual, text = (x.detach() if x.stride(1) == 1 else x.detach().contiguous() for x in (visual, text))
    table = _table(shapes, visual.device)
    tokens, channels = visual.shape
    blocks = sum(len(shape.blocks) for shape in shapes)
    largest = max(size for shape in shapes for size in shape.blocks)
    words = max(sum(count for count, _ in shape.segments) for shape in shapes)
    texts = max(sum(count for count, _ in shape.segments) + shape.pooled for shape in shapes)
    segment = max((count for shape in shapes for count, _ in shape.segments), default=1)

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=visual.device)

    cosines, weights = empty(texts, tokens), empty(words, tokens)
    entropy, kept = empty(words, blocks), empty(words, blocks, dtype=torch.bool)
    dense_score, global_score, fused, score = (empty(tokens) for _ in range(4))
    launch(
        word_cosines,
        (triton.cdiv(largest, TILE), triton.cdiv(texts, TILE), blocks),
        visual,
        text,
        table,
        cosines,
        float(sign),
        visual.stride(0),
        text.stride(0),
        tokens,
        channels,
        tile=TILE,
        depth=DEPTH,
        num_warps=4,
    )
    if words:
        launch(
            word_entropies,
            (triton.cdiv(words, ENTROPY_WORDS), blocks),
            cosines,
            table,
            entropy,
            tau,
            tokens,
            blocks,
            words=ENTROPY_WORDS,
            chunk=ENTROPY_TOKENS,
            num_warps=4,
        )
    padded = triton.next_power_of_2(segment)
    chunk = max(8, min(128, FUSED_ENTRIES // padded))
    tiles = triton.cdiv(largest, chunk)
    extremes = empty(blocks, tiles, 2)
    is_constant = empty(blocks if by_block else len(shapes), dtype=torch.bool)
    launch(
        fuse_scores,
        (tiles, blocks),
        cosines,
        entropy,
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
        has_words=words > 0,
        has_pooled=texts > words,
        by_floor=by_floor,
        aggregation=AGGREGATIONS.index(aggregation),
        words=padded,
        chunk=chunk,
        num_warps=8,
    )
    launch(
        normalize_scores,
        (tiles, blocks),
        fused,
        extremes,
        table,
        score,
        is_constant,
        *epsilons,
        constant_range,
        by_block=by_block,
        chunk=chunk,
        num_warps=4,
    )
    return Scores(cosines, entropy, kept, weights, dense_score, global_score, fused, score, is_constant)
