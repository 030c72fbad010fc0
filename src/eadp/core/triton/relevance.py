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
from torch import Tensor

from eadp.core.device_tables import numbers_on_device
from eadp.core.triton.launch import launch
from eadp.core.triton.relevance_kernels import fuse_scores, normalize_scores, word_cosines, word_entropies

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
