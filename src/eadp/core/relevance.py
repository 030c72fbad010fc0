"""Stage 1: dispersion-aware dense scoring and fusion (Eq. 2 to 10).

Each visual token gets an instruction relevance score: a weighted sum of its similarity to the whole question (global
guidance) and to the single words (dense guidance). Words whose similarity is dispersed over the whole image are noise
and are filtered out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from eadp.core.backends import choose_backend
from eadp.core.block_layout import BlockLayout
from eadp.core.scoring import CONSTANT_RANGE, Scoring
from eadp.core.similarity import scale_rows, unit_rows
from eadp.core.trace import part
from eadp.core.types import Relevance, TextGuide
from eadp.core.word_weights import WordMaps, count_words, filter_words, measure_dispersion, sum_words


def constant_note(some_blocks: bool) -> str:
    """Return the note on an image whose map is constant. some_blocks: in some of its blocks, each normalized alone."""
    where, what = ("of some blocks ", "those blocks") if some_blocks else ("", "they")
    return f"the text does not tell the tokens {where}apart: {what} are covered evenly"


@dataclass(frozen=True)
class _Query:
    """One image and its question.

    Attributes:
        visual: N×c.
        words: M×c of each segment that has words.
        pooled: 1×c of each pooled vector.
        layout: Where the blocks lie among the tokens.
        mu: μ; 1 if the question has no words.
        notes: What is done differently from what was asked.
    """

    visual: Tensor
    words: list[Tensor]
    pooled: list[Tensor]
    layout: BlockLayout
    mu: float
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        visual: Tensor,
        text: Tensor | Sequence[Tensor] | None,
        pooled: Tensor | Sequence[Tensor] | None,
        blocks: Sequence[slice] | None,
        scoring: Scoring,
    ) -> _Query:
        """Check what was given."""
        if visual.ndim != 2:
            raise ValueError(f"visual must be a matrix with one row per token, got shape {tuple(visual.shape)}")
        layout = BlockLayout.of([slice(0, len(visual))] if blocks is None else blocks, visual.device)
        words = [segment for segment in _as_segments(text, 2) if len(segment)]
        vectors = [vector[None] for vector in _as_segments(pooled, 1)]
        for what, parts in (("text", words), ("pooled", vectors)):
            for values in parts:
                if values.shape[1] != visual.shape[1]:
                    raise ValueError(f"{what} has {values.shape[1]} channels, but visual has {visual.shape[1]}")
        notes, mu = [], scoring.mu
        is_empty = not words and not vectors
        if is_empty and text is None:
            raise ValueError("there is no text: give the words of the question (text), its pooled vector, or both")
        if is_empty:
            notes.append("the question is empty")
        elif not words and mu < 1:
            notes.append(f"the question has no words of its own: the pooled text decides alone (μ = 1 instead of {mu})")
            mu = 1.0
        if not vectors and mu > 0 and not is_empty:
            raise ValueError(f"mu={mu} weighs the pooled text, but pooled is missing: give it, or set mu=0")
        return cls(visual, words, vectors, layout, mu, tuple(notes))

    @property
    def texts(self) -> list[Tensor]:
        """All words and pooled vectors, on the device of the image."""
        return [values.to(self.visual.device) for values in (*self.words, *self.pooled)]

    def read_notes(self, scored: Relevance, by_block: bool) -> Relevance:
        """Read back if the input was finite and the map constant; raise ValueError, or add a note."""
        constant = cast(Tensor, scored.is_constant)
        is_finite, covers_evenly = torch.stack([scored.fused.isfinite().all(), constant]).tolist()
        if not is_finite:
            given = [("visual", self.visual), *(("text", values) for values in self.words)]
            for what, values in (*given, *(("pooled", values) for values in self.pooled)):
                unit_rows(values, what)
        if not covers_evenly:
            return scored
        note = constant_note(by_block and len(self.layout) > 1)
        return replace(scored, notes=(*scored.notes, note))


@part("relevance")
def relevance(
    visual: Tensor,
    text: Tensor | Sequence[Tensor] | None,
    pooled: Tensor | Sequence[Tensor] | None,
    *,
    blocks: Sequence[slice] | None = None,
    sign: float = -1.0,
    scoring: Scoring | None = None,
    wait: bool = True,
    backend: str = "auto",
) -> Relevance:
    """Compute the instruction relevance score S^I = min-max(μ·S^G + (1−μ)·S^D) of N visual tokens (Eq. 2 to 10).

    Without any words (M = 0), the pooled text alone decides, as with μ = 1, and `notes` says so. If there is no pooled
    text either, the question is empty: all tokens have the same score.

    Args:
        visual: N×c, the visual tokens in the embedding space of the text.
        text: M×c, the words of the question, or one such matrix per segment. Segments have equal weight.
        pooled: c, the embedding of the whole question, or one vector per segment.
        blocks: The range of token indices of each block (crop, frame). Softmax, entropy, filter and weights are
            computed for each block separately, as the batch dimension of Algorithm 1 implies. None for one block.
        sign: Factor on the cosines, +1 or −1. −1, as in the paper and its release, where raw cosines are highest on the
            background.
        scoring: Settings. None for the defaults.
        wait: Whether to read back if the input was valid and the map constant. Without, nothing waits for the device:
            input that is not finite leaves NaN in the score, and `is_constant` takes the place of a note.
        backend: `triton` for four launches, `torch` for torch operations, or `auto`: triton on CUDA and ROCm. Settings
            of the ablations that the kernels do not know, and float64, always run in torch operations.

    Returns:
        The score and all intermediate results, without those of stage 2.

    Raises:
        ValueError: If there is no text, the pooled text is missing although μ > 0, or an argument is out of range.
    """
    scoring = Scoring() if scoring is None else scoring
    query = _Query.of(visual, text, pooled, blocks, scoring)
    (scored,) = _score([query], sign, scoring, backend)
    return query.read_notes(scored, scoring.normalised_over == "block") if wait else scored


@part("relevance")
def relevance_of_images(
    visual: Sequence[Tensor],
    texts: Sequence[TextGuide],
    *,
    blocks: Sequence[Sequence[slice]] | None = None,
    scoring: Scoring | None = None,
    backend: str = "auto",
) -> list[Relevance]:
    """Compute `relevance` of several images, each with its own question, without waiting for the device.

    On CUDA and ROCm the number of launches does not depend on the number of images, if all questions have words and
    pooled vectors alike.

    Args:
        visual: N×c of each image.
        texts: The question of each image, all with the same sign.
        blocks: The blocks of each image. None for one block each.
        scoring: Settings. None for the defaults.
        backend: As for `relevance`.

    Returns:
        What `relevance` returns for each image.
    """
    scoring = Scoring() if scoring is None else scoring
    if len({text.sign for text in texts}) > 1:
        raise ValueError("the questions of all images must have the same sign")
    queries = [
        _Query.of(each, text.tokens, text.pooled, None if blocks is None else blocks[which], scoring)
        for which, (each, text) in enumerate(zip(visual, texts, strict=True))
    ]
    return _score(queries, texts[0].sign, scoring, backend) if queries else []


def _score(queries: list[_Query], sign: float, scoring: Scoring, backend: str) -> list[Relevance]:
    """Score all images at once by Triton, or one after the other."""
    if sign not in (-1, 1):
        raise ValueError(f"sign must be +1 or −1, got {sign}")
    chosen = choose_backend(backend, queries[0].visual.device)
    if chosen == "triton" and _has_kernels(queries, scoring):
        return _score_by_kernels(queries, sign, scoring)
    return [_score_by_torch(query, sign, scoring) for query in queries]


def _has_kernels(queries: list[_Query], scoring: Scoring) -> bool:
    """Return whether the Triton kernels can score these images together."""
    from eadp.core.triton.relevance import AGGREGATIONS as IN_KERNELS
    from eadp.core.triton.relevance import MOST_WORDS

    alike = {(bool(query.words), bool(query.pooled), query.mu, query.visual.shape[1]) for query in queries}
    return (
        len(alike) == 1
        and bool(queries[0].words or queries[0].pooled)
        and scoring.dispersion == "entropy"
        and scoring.aggregation.name in IN_KERNELS
        and all(query.layout.covers(len(query.visual)) for query in queries)
        and all(len(segment) <= MOST_WORDS for query in queries for segment in query.words)
        and all(x.dtype != torch.float64 for query in queries for x in (query.visual, *query.words, *query.pooled))
    )


def _score_by_kernels(queries: list[_Query], sign: float, scoring: Scoring) -> list[Relevance]:
    """Score all images at once; the results are views of those of all images."""
    from eadp.core.triton.relevance import QuestionShape, score_tokens

    shapes = [
        QuestionShape(
            tuple(query.layout.sizes),
            tuple((len(each), count_words(len(each), scoring.q, scoring.word_count)) for each in query.words),
            len(query.pooled),
        )
        for query in queries
    ]
    by_block = scoring.normalised_over == "block"
    found = score_tokens(
        queries[0].visual if len(queries) == 1 else torch.cat([query.visual for query in queries]),
        _concatenate([values for query in queries for values in query.texts]),
        shapes,
        sign=sign,
        mu=queries[0].mu,
        tau=scoring.tau,
        gamma=scoring.aggregation.gamma,
        theta=scoring.aggregation.theta,
        aggregation=scoring.aggregation.name,
        by_floor=scoring.word_count == "floor",
        by_block=by_block,
        epsilons=scoring.epsilons,
        constant_range=CONSTANT_RANGE,
    )
    is_constant = found.is_constant
    if by_block and len(is_constant) > len(queries):
        images = BlockLayout.following([len(query.layout) for query in queries], is_constant.device)
        is_constant = images.stack(is_constant).any(1)
    scored, token, block = [], 0, 0
    for which, query in enumerate(queries):
        words = sum(map(len, query.words))
        own = slice(token, token + len(query.visual))
        own_blocks = slice(block, block + len(query.layout))
        entropies = found.entropy[:words, own_blocks]
        scored.append(
            Relevance(
                similarity=found.cosines[:words, own],
                entropy=entropies,
                dispersion=entropies,
                kept=found.kept[:words, own_blocks],
                weights=found.weights[:words, own],
                dense_score=found.dense_score[own] if query.words else None,
                global_score=found.global_score[own] if query.pooled else None,
                fused=found.fused[own],
                score=found.score[own],
                is_constant=is_constant[which],
                notes=query.notes,
            )
        )
        token, block = own.stop, own_blocks.stop
    return scored


@dataclass(frozen=True)
class _DenseGuidance:
    """Filter and weights of one segment's M words: M×B, and M×N for the weights."""

    entropy: Tensor
    dispersion: Tensor
    kept: Tensor
    weights: Tensor


def _dense_guidance(similarity: Tensor, layout: BlockLayout, scoring: Scoring) -> _DenseGuidance:
    """Filter and weight M words (Eq. 4 to 7) by their M×N similarity to the tokens, in all blocks at once."""
    maps = WordMaps.of(similarity, layout)
    h = measure_dispersion("entropy", maps, scoring.tau)
    dispersion = h if scoring.dispersion == "entropy" else measure_dispersion(scoring.dispersion, maps, scoring.tau)
    kept = filter_words(dispersion, scoring.q, scoring.word_count)
    weights = scoring.aggregation.weights(maps.similarity, dispersion, kept).expand_as(maps.similarity)
    return _DenseGuidance(h.T, dispersion.T, kept.T, layout.unstack(weights.mT).T)


def _score_by_torch(query: _Query, sign: float, scoring: Scoring) -> Relevance:
    """Score one image in torch operations, without waiting for the device."""
    visual, layout, mu = scale_rows(query.visual, "visual"), query.layout, query.mu
    # One product for all words and pooled vectors.
    cosines = visual.new_empty(0, len(visual))
    if texts := [values.to(visual) for values in query.texts]:
        cosines = sign * (scale_rows(_concatenate(texts), "text") @ visual.T)
    words = sum(map(len, query.words))
    similarity = cosines[:words]
    maps = similarity.split([len(values) for values in query.words])
    guidance = [_dense_guidance(each, layout, scoring) for each in maps] if words else []
    weights = _concatenate([each.weights for each in guidance], similarity)
    dense_score = _average(sum_words(weights, similarity), len(query.words)) if guidance else None
    global_score = _average(cosines[words:].sum(0), len(query.pooled)) if query.pooled else None
    if dense_score is None and global_score is None:
        fused = visual.new_zeros(len(visual))
    elif dense_score is None or global_score is None:
        only = cast(Tensor, global_score if dense_score is None else dense_score)
        fused = (mu if dense_score is None else 1 - mu) * only
    else:
        fused = torch.lerp(dense_score, global_score, mu)

    if scoring.normalised_over == "image":
        score, constant = scoring.normalize(fused)
    else:
        is_token = None if layout.is_regular else layout.is_token
        score, constant = scoring.normalize(layout.stack(fused), is_token)
        score = layout.unstack(score)
    no_words = visual.new_empty(0, len(layout))
    return Relevance(
        similarity=similarity,
        entropy=_concatenate([each.entropy for each in guidance], no_words),
        dispersion=_concatenate([each.dispersion for each in guidance], no_words),
        kept=_concatenate([each.kept for each in guidance], no_words.new_empty(no_words.shape, dtype=torch.bool)),
        weights=weights,
        dense_score=dense_score,
        global_score=global_score,
        fused=fused,
        score=score,
        is_constant=constant,
        notes=query.notes,
    )


def _concatenate(parts: list[Tensor], empty: Tensor | None = None) -> Tensor:
    """Concatenate segments; one alone needs no copy."""
    if not parts:
        return cast(Tensor, empty)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _average(total: Tensor, segments: int) -> Tensor:
    """Divide a sum over segments by their number."""
    return total if segments == 1 else total / segments


def _as_segments(value: Tensor | Sequence[Tensor] | None, ndim: int) -> list[Tensor]:
    """Turn one tensor of `ndim` dimensions, a stack of them or a sequence of them into a list."""
    if value is None:
        return []
    segments = [value] if isinstance(value, Tensor) and value.ndim == ndim else list(value)
    for segment in segments:
        if segment.ndim != ndim:
            wanted = "M×c" if ndim == 2 else "a vector of c"
            raise ValueError(f"each segment of the text must be {wanted}, got shape {tuple(segment.shape)}")
    return segments
