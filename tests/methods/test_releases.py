"""The methods against independent float64 readings of the measured facts of their releases.

The golden vectors have typical sizes. Here are budgets of one token and of all but one, questions of one word, several
segments, and grids that are not square. All inputs are float64, so that rounding decides nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import releases
from torch import Tensor

from eadp import (
    DART,
    EADP,
    SCOPE,
    TRIM,
    CDPruner,
    DivPrune,
    FastV,
    HiPrune,
    MMTok,
    PruMerge,
    SparseVLM,
    TextGuide,
    VisionZip,
    VisPruner,
    VisualTokens,
)
from eadp.core import TowerAttention
from eadp.methods.inside import Cut
from eadp.parity.sequence import GivenLayerView

SEEDS = (0, 1)
ONE_BLOCK = [((24, 24), 1), ((6, 6), 35), ((3, 8), 1), ((3, 8), 23), ((1, 9), 4), ((5, 7), 12)]


class Source:
    """Random arrays as both sides take them."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def normal(self, *shape: int) -> np.ndarray:
        return self.generator.normal(size=shape)

    def near(self, rows: int, width: int) -> np.ndarray:
        """Rows around a common direction, so that cosines spread over a few hundredths and entropies are not 0."""
        return 8 * self.normal(1, width) + self.normal(rows, width)


def tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def question(
    source: Source, segments: int, slots: int, width: int
) -> tuple[list[np.ndarray], list[np.ndarray], TextGuide]:
    words = [source.near(slots, width) for _ in range(segments)]
    pooled = [source.normal(width) for _ in range(segments)]
    return words, pooled, TextGuide([tensor(each) for each in words], [tensor(each) for each in pooled])


def orders_by_block(order: Tensor, tokens: VisualTokens) -> list[list[int]]:
    return [[int(i) - block.start for i in order if block.start <= i < block.stop] for block in tokens.blocks]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("segments", "slots"), [(1, 1), (1, 4), (2, 77)])
@pytest.mark.parametrize(("grid", "keep"), ONE_BLOCK)
@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_eadp_on_one_image(family: str, grid: tuple[int, int], keep: int, segments: int, slots: int, seed: int) -> None:
    source, total = Source(seed), grid[0] * grid[1]
    rows, aligned = source.normal(total, 7), source.near(total, 5)
    words, pooled, text = question(source, segments, slots, 5)
    score = releases.lifted_min_max(releases.eadp_scores(aligned, words, pooled, 0.2, video=False))
    side = int(np.sqrt(total))
    if family == "qwen2_5_vl":
        score = releases.smooth(score, *grid) ** 2
    elif side * side == total:  # the release on LLaVA guesses a square grid from the number of tokens
        score = releases.smooth(score, side, side)
    selection = EADP.published(keep, family).select(VisualTokens(tensor(rows), tensor(aligned), [grid]), text)
    assert selection.order is not None
    assert selection.order.tolist() == releases.greedy_cover(rows, score, keep)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("side", "budget"), [(4, 5), (4, 40), (6, 7), (3, 30)])
def test_eadp_on_crops(side: int, budget: int, seed: int) -> None:
    source, crops, cells = Source(seed), 5, side * side
    rows, aligned = source.normal(crops * cells, 7), source.near(crops * cells, 5)
    words, pooled, text = question(source, 1, 9, 5)
    blocks = [slice(crop * cells, (crop + 1) * cells) for crop in range(crops)]
    fused = np.concatenate([releases.eadp_scores(aligned[b], words, pooled, 0.2, video=False) for b in blocks])
    score = releases.lifted_min_max(fused)
    maps = [releases.smooth(score[block], side, side) for block in blocks]
    whole = sum(each.sum() for each in maps) + 1e-6
    quotas = [min(cells, max(1, int(each.sum() / whole * budget))) for each in maps]
    expected = [releases.greedy_cover(rows[b], m, q) for b, m, q in zip(blocks, maps, quotas, strict=True)]
    tokens = VisualTokens(tensor(rows), tensor(aligned), [(side, side)] * crops, (2, 2))
    selection = EADP.published(budget, "llava_next").select(tokens, text)
    assert selection.order is not None
    assert orders_by_block(selection.order, tokens) == expected


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("grid", "keep", "slots"), [((3, 5), 1, 8), ((3, 5), 14, 1), ((4, 4), 6, 64), ((1, 6), 2, 3)])
def test_eadp_on_frames(grid: tuple[int, int], keep: int, slots: int, seed: int) -> None:
    source, frames, cells = Source(seed), 3, grid[0] * grid[1]
    rows, aligned = source.normal(frames * cells, 7), source.near(frames * cells, 5)
    words, pooled, text = question(source, 1, slots, 5)
    expected = []
    for frame in range(frames):
        own = aligned[frame * cells : (frame + 1) * cells]
        score = releases.lifted_min_max(releases.eadp_scores(own, words, pooled, 0.5, video=True))
        expected.append(releases.greedy_cover(own, releases.smooth(score, *grid) ** 2, keep))
    tokens = VisualTokens(tensor(rows), tensor(aligned), [grid] * frames)
    selection = EADP.published(frames * keep, "llava_video").select(tokens, text)
    assert selection.order is not None
    assert orders_by_block(selection.order, tokens) == expected


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("layout", [(2, 2), None], ids=["crops", "frames"])
@pytest.mark.parametrize(("grid", "keep"), [((3, 4), 1), ((3, 4), 11), ((2, 9), 5)])
def test_cdpruner(grid: tuple[int, int], keep: int, layout: tuple[int, int] | None, seed: int) -> None:
    source, cells = Source(seed), grid[0] * grid[1]
    blocks = 5 if layout else 3
    rows, aligned = source.normal(blocks * cells, 40), source.normal(blocks * cells, 6)
    pooled = [source.normal(6) for _ in range(2)]
    relevance = np.mean([-releases.cosine(each[None], aligned)[0] for each in pooled], axis=0)
    expected = []
    for block in range(blocks):
        own = slice(block * cells, (block + 1) * cells)
        scale = relevance if layout else relevance[own]  # crops share a scale, frames do not
        r = (relevance[own] - scale.min() + 1e-6) / (scale.max() - scale.min() + (0 if layout else 1e-6))
        expected.append(releases.greedy_dpp(rows[own], r, keep))
    tokens = VisualTokens(tensor(rows), tensor(aligned), [grid] * blocks, layout)
    selection = CDPruner(keep=blocks * keep).select(tokens, TextGuide(None, [tensor(each) for each in pooled]))
    assert selection.order is not None
    assert orders_by_block(selection.order, tokens) == expected


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("grid", "keep"), [((3, 8), 1), ((3, 8), 23), ((1, 9), 0.5), ((5, 7), 0.3)])
def test_divprune(grid: tuple[int, int], keep: float, seed: int) -> None:
    rows = Source(seed).normal(grid[0] * grid[1], 6)
    count = keep if isinstance(keep, int) else round(keep * len(rows))
    selection = DivPrune(keep=keep).select(VisualTokens(tensor(rows), None, [grid]))
    assert selection.order is not None
    assert selection.order.tolist() == releases.farthest_first(rows, int(count))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("keep", [0.05, 0.3, 0.9])
def test_divprune_lets_newlines_compete(keep: float, seed: int) -> None:
    source, newlines = Source(seed), 4
    rows, newline = source.normal(20, 6), source.normal(1, 6)
    pool = np.concatenate([rows, newline.repeat(newlines, axis=0)])
    picks = releases.farthest_first(pool, round(keep * len(pool)))
    tokens = VisualTokens(tensor(rows), None, [(2, 2)] * 5, (2, 2), newlines=tensor(newline.repeat(newlines, axis=0)))
    selection = DivPrune(keep=keep).select(tokens)
    assert selection.indices.tolist() == sorted(index for index in picks if index < len(rows))
    assert selection.newlines == sum(index >= len(rows) for index in picks)


def tower_attention(layer: int, depth: int, received: np.ndarray, family: str) -> TowerAttention:
    return TowerAttention(layer, depth, torch.zeros(len(received), 1, 1), received=tensor(received), family=family)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
@pytest.mark.parametrize(("grid", "keep"), [((4, 9), 1), ((4, 9), 35), ((9, 4), 20), ((2, 18), 12)])
def test_hiprune(grid: tuple[int, int], keep: int, family: str, seed: int) -> None:
    source, total = Source(seed), grid[0] * grid[1]
    middle, deep = (source.generator.dirichlet(np.ones(total)) for _ in range(2))
    sums = total if family == "qwen2_5_vl" else 1  # on Qwen the release subtracts 1 from a sum over queries
    expected = releases.hiprune(sums * middle, sums * deep, grid[1], keep, alpha=0.7)
    attention = [tower_attention(8, 24, middle, family), tower_attention(22, 24, deep, family)]
    tokens = VisualTokens(torch.ones(total, 2), None, [grid], attention=attention)
    assert HiPrune(keep=keep, alpha=0.7).select(tokens).indices.tolist() == expected


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("grid", "dominant", "contextual"), [((3, 6), 1, 3), ((3, 6), 16, 1), ((2, 11), 6, 4)])
def test_visionzip(grid: tuple[int, int], dominant: int, contextual: int, seed: int) -> None:
    source, total = Source(seed), grid[0] * grid[1]
    states, keys, attention = source.normal(total + 1, 5), source.normal(total, 3, 4), source.generator.random(total)
    expected = releases.visionzip(states[1:], states[0], attention, keys.mean(1), dominant, contextual)
    tokens = VisualTokens(
        torch.ones(total, 2).double(),
        None,
        [grid],
        attention=[TowerAttention(22, 24, tensor(keys), tensor(attention))],
        tower=tensor(states[1:]),
        tower_cls=tensor(states[:1]),
    )
    selection = VisionZip(keep=dominant + contextual, contextual=contextual).select(tokens)
    assert selection.merge is not None
    merged = selection.merge.double() @ torch.cat([tensor(states[1:]), tensor(states[:1])])
    np.testing.assert_allclose(merged.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("grid", "outliers"), [((4, 10), 1), ((4, 10), 4), ((7, 3), 2)])
def test_prumerge(grid: tuple[int, int], outliers: int, seed: int) -> None:
    source, total = Source(seed), grid[0] * grid[1]
    states, keys = source.normal(total, 5), source.normal(total, 4)
    attention = source.generator.uniform(0.9, 1, total)
    attention[source.generator.choice(total, outliers, replace=False)] += 3 + source.generator.random(outliers)
    attention /= 1.1 * attention.sum()
    expected = releases.prumerge(states, attention, keys, neighbours=3)
    layer = TowerAttention(23, 24, tensor(keys[:, None]), tensor(attention), cls_full_width=tensor(attention))
    tokens = VisualTokens(torch.ones(total, 2).double(), None, [grid], attention=[layer], tower=tensor(states))
    selection = PruMerge(neighbours=3).select(tokens)
    assert selection.merge is not None
    np.testing.assert_allclose((selection.merge.double() @ tensor(states)).numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("keep", [1, 23, 0.1, 0.52])
def test_trim(keep: float, seed: int) -> None:
    source, total = Source(seed), 24
    states, aligned, pooled = source.normal(total, 5), source.normal(total, 4), source.normal(4)
    count = keep if isinstance(keep, int) else int(total * keep)
    kept = sorted(releases.highest(-aligned @ pooled, int(count)))
    rest = [index for index in range(total) if index not in kept]
    tokens = VisualTokens(torch.ones(total, 2).double(), tensor(aligned), [(3, 8)], tower=tensor(states))
    selection = TRIM(keep=keep).select(tokens, TextGuide(None, tensor(pooled)))
    assert selection.merge is not None
    expected = np.concatenate([states[kept], states[rest].mean(axis=0, keepdims=True)])
    np.testing.assert_allclose((selection.merge.double() @ tensor(states)).numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keep", [1, 29])
def test_fastv(keep: int) -> None:
    weights = Source(keep).generator.random(30)
    view = GivenLayerView(visual=torch.ones(30, 2), weights=tensor(weights[None]))
    assert FastV(keep=keep).choose(Cut(2, keep), view).indices.tolist() == sorted(releases.highest(weights, keep))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("start", "total", "words", "budget"), [(0, 40, 4, 8), (35, 40, 9, 35), (7, 21, 30, 16)])
def test_dart(start: int, total: int, words: int, budget: int, seed: int) -> None:
    source, length = Source(seed), start + total + words
    hidden, keys, norm = source.normal(length, 6), source.normal(length, 8), source.generator.uniform(0.5, 2, 6)
    expected = releases.dart(hidden, keys, norm, 1e-6, start, total, budget)
    image, text = torch.arange(start, start + total), torch.arange(start + total, length)
    view = GivenLayerView(
        visual=tensor(hidden)[image],
        text=tensor(hidden)[text],
        visual_keys=tensor(keys)[image],
        text_keys=tensor(keys)[text],
        visual_places=image,
        text_places=text,
        norm=tensor(norm),
        eps=1e-6,
    )
    method = DART(keep=budget)
    (cut,) = method.cuts(total, 32)
    assert method.choose(cut, view).indices.tolist() == expected


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("total", "words", "keep"), [(40, 3, 1), (40, 12, 39), (150, 7, 20)])
def test_sparsevlm(total: int, words: int, keep: int, seed: int) -> None:
    source = Source(seed)
    visual, text, states = source.normal(total, 6), source.normal(words, 6), source.normal(total, 5)
    attention = releases.softmax(source.normal(2, words, total), axis=2)
    kept, recycled = releases.sparsevlm(visual, text, attention, states, keep)
    view = GivenLayerView(
        visual=tensor(states),
        visual_inputs=tensor(visual),
        text_inputs=tensor(text),
        weights=tensor(attention.mean(axis=0)),
    )
    method = SparseVLM(table=(keep,) * 3)
    cut = method.cuts(total, 32)[0]
    selection = method.choose(cut, view)
    assert selection.rows is not None
    assert selection.merge is not None
    assert selection.rows[: cut.keep - cut.merged].tolist() == kept
    merged = (selection.merge.double() @ tensor(states))[cut.keep - cut.merged :]
    np.testing.assert_allclose(sorted(merged.tolist()), sorted(recycled), rtol=1e-4, atol=1e-5)


def cls_tokens(tower: np.ndarray, attention: np.ndarray, grid: tuple[int, int]) -> VisualTokens:
    layer = TowerAttention(22, 24, torch.zeros(len(tower), len(attention), 1), tensor(attention.mean(axis=0)))
    return VisualTokens(tensor(tower), None, [grid], attention=[layer], tower_features=tensor(tower))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("grid", "keep"), ONE_BLOCK)
def test_scope_and_vispruner(grid: tuple[int, int], keep: int, seed: int) -> None:
    source, total = Source(seed), grid[0] * grid[1]
    tower = source.near(total, 12)
    attention = np.stack([source.generator.dirichlet(np.ones(total)) for _ in range(3)])
    tokens = cls_tokens(tower, attention, grid)
    assert SCOPE(keep=keep).select(tokens).order.tolist() == releases.scope(tower, attention, keep)
    for ratio in (0.0, 0.3, 0.5, 1.0):
        found = VisPruner(keep=keep, ratio=ratio).select(tokens)
        assert found.order.tolist() == releases.vispruner(tower, attention, keep, ratio)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("words", [1, 9])
@pytest.mark.parametrize(("grid", "keep"), ONE_BLOCK)
def test_mmtok(grid: tuple[int, int], keep: int, words: int, seed: int) -> None:
    source, total = Source(seed), grid[0] * grid[1]
    text, projected, tower = source.normal(words, 16), source.normal(total, 16), source.near(total, 12)
    guide = TextGuide(tensor(text), None)
    tokens = VisualTokens(tensor(projected), tensor(projected), [grid], tower_features=tensor(tower))
    assert MMTok(keep=keep).select(tokens, guide).order.tolist() == releases.mmtok(text, projected, tower, keep)
    padded = [0, total - 1]
    if keep <= total - len(padded):
        tokens = replace(tokens, padding=torch.isin(torch.arange(total), torch.tensor(padded)))
        expected = releases.mmtok(text, projected, tower, keep, padded)
        assert MMTok(keep=keep).select(tokens, guide).order.tolist() == expected
