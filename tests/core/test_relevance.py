"""Stage 1 against the oracle: every dispersion, every aggregation, segments, signs, dtypes, invalid input."""

import numpy as np
import pytest
import torch
from helpers import oracle
from hypothesis import given
from hypothesis import strategies as st

from eadp import core
from eadp.core import Aggregation, Scoring, word_weights


def score(visual, words, pooled, sign=-1, blocks=None, aggregation="neg_entropy", gamma=0.01, **settings):
    """Call `core.relevance` with the settings of stage 1 as keyword arguments."""
    scoring = Scoring(aggregation=Aggregation(aggregation, gamma), **settings)
    return core.relevance(visual, words, pooled, sign=sign, blocks=blocks, scoring=scoring)


def texts(seed, n=48, m=9, c=24):
    """Return visual tokens, words and pooled text. Half of the words are similar to one token, the others to none."""
    g = torch.Generator().manual_seed(seed)
    visual = torch.randn(n, c, generator=g)
    words = torch.randn(m, c, generator=g)
    words[: m // 2] += 2 * visual[torch.randint(n, (m // 2,), generator=g)]
    return visual, words, words.mean(0)


@pytest.mark.parametrize("dispersion", ["entropy", "central_mass", "variance"])
@pytest.mark.parametrize("aggregation", core.AGGREGATIONS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_every_variant_agrees_with_the_equations(dispersion, aggregation, sign):
    visual, words, pooled = texts(1)
    settings = {"mu": 0.3, "q": 0.4, "tau": 0.2, "gamma": 0.5, "sign": sign}
    if dispersion == "variance" and aggregation.startswith("inverse"):
        with pytest.raises(ValueError, match=r"inverse_entropy.*not be negative"):
            score(visual, words, pooled, dispersion=dispersion, aggregation=aggregation, **settings)
        return
    got = score(visual, words, pooled, dispersion=dispersion, aggregation=aggregation, **settings)
    c = sign * oracle.cosine(words, visual)
    h, kept, dense = oracle.dense_guidance(c, 0.4, 0.2, 0.5, dispersion, aggregation)
    fused = oracle.relevance(visual, [words], [pooled], kind=dispersion, agg=aggregation, **settings)
    np.testing.assert_allclose(got.similarity, c, atol=1e-6)
    np.testing.assert_allclose(got.entropy[:, 0], oracle.dispersion(c, 0.2, "entropy"), atol=1e-5)
    np.testing.assert_allclose(got.dispersion[:, 0], h, atol=1e-5)
    assert got.kept[:, 0].tolist() == kept.tolist()
    np.testing.assert_allclose(got.dense_score, dense, atol=1e-5)
    np.testing.assert_allclose(got.global_score, sign * oracle.cosine(visual, pooled[None])[:, 0], atol=1e-6)
    np.testing.assert_allclose(got.fused, fused, atol=1e-5)
    np.testing.assert_allclose(got.score, oracle.min_max(fused), atol=1e-4)


def test_a_localized_word_has_lower_entropy_than_a_dispersed_one():
    visual = torch.eye(16)
    localized, dispersed = torch.eye(16)[3], torch.ones(16)
    got = score(visual, torch.stack([dispersed, localized]), dispersed, q=0.5, mu=0.0, sign=1)
    assert got.kept[:, 0].tolist() == [False, True]
    assert got.score.argmax() == 3
    assert got.entropy[0, 0] == pytest.approx(np.log(16), abs=1e-4)


def test_words_that_tie_with_the_threshold_are_kept():
    visual, words, pooled = texts(2)
    twins = torch.cat([words[:2], words[:2], words[:2]])
    got = score(visual, twins, pooled, q=0.2)
    assert got.kept.sum() == 3


@given(m=st.integers(1, 40), q=st.floats(0.01, 1.0))
def test_the_number_of_kept_words_is_rounded_up(m, q):
    visual, words, pooled = texts(3, m=m)
    kept = score(visual, words, pooled, q=q).kept.sum().item()
    assert kept == max(1, int(np.ceil(round(q * m, 9))))


def test_three_tenths_of_ten_words_are_exactly_three():
    visual, words, pooled = texts(4, m=10)
    assert score(visual, words, pooled, q=0.3).kept.sum() == 3


def test_segments_are_averaged():
    visual, words, pooled = texts(5)
    other, other_pooled = texts(6)[1:]
    both = score(visual, [words, other[:4]], [pooled, other_pooled], tau=0.1)
    fused = oracle.relevance(visual, [words, other[:4]], [pooled, other_pooled], tau=0.1)
    np.testing.assert_allclose(both.fused, fused, atol=1e-5)
    assert both.similarity.shape == (len(words) + 4, len(visual))
    assert len(both.kept) == len(both.weights) == len(words) + 4
    alone = score(visual, words, pooled)
    twice = score(visual, [words, words], torch.stack([pooled, pooled]))
    torch.testing.assert_close(alone.score, twice.score)


def test_mu_weighs_the_pooled_text_against_the_words():
    visual, words, pooled = texts(7)
    got = {mu: score(visual, words, pooled, mu=mu) for mu in (0.0, 1.0)}
    torch.testing.assert_close(got[0.0].fused, got[0.0].dense_score)
    torch.testing.assert_close(got[1.0].fused, got[1.0].global_score)
    without_pooled = score(visual, words, None, mu=0.0)
    torch.testing.assert_close(without_pooled.score, got[0.0].score)


def test_without_words_the_pooled_text_decides_and_a_note_says_so():
    visual, words, pooled = texts(8)
    got = score(visual, words[:0], pooled, mu=0.25)
    torch.testing.assert_close(got.score, score(visual, words, pooled, mu=1.0).score)
    assert "no words" in got.notes[0]
    assert "0.25" in got.notes[0]
    assert score(visual, words, pooled).notes == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_precision_input_is_computed_in_float32_or_better(dtype):
    visual, words, pooled = (x.to(dtype) for x in texts(9))
    got = score(visual, words, pooled, tau=0.1)
    assert got.score.dtype == torch.promote_types(dtype, torch.float32)
    expected = oracle.min_max(oracle.relevance(visual.double(), [words.double()], [pooled.double()], tau=0.1))
    np.testing.assert_allclose(got.score, expected, atol=1e-4)


def test_a_token_of_zero_norm_is_neutral_and_never_nan():
    visual, words, pooled = texts(10)
    visual[5] = 0
    got = score(visual, words, pooled)
    assert (got.similarity[:, 5] == 0).all()
    assert got.score.isfinite().all()


def test_a_constant_map_covers_evenly_and_a_note_says_so():
    _, words, pooled = texts(12)
    got = score(torch.ones(9, 24), words, pooled)
    assert got.score.tolist() == [1.0] * 9
    assert "covered evenly" in got.notes[0]


@pytest.mark.parametrize(("words", "q", "kept"), [(77, 0.2, 15), (64, 0.5, 32), (3, 0.2, 1), (10, 0.3, 3), (1, 1.0, 1)])
def test_released_word_count_is_rounded_down(words, q, kept):
    visual, text, pooled = texts(13, m=words)
    got = score(visual, text, pooled, q=q, word_count="floor")
    assert got.kept.sum() == kept
    lowest = got.entropy[:, 0].argsort()[:kept]
    assert got.kept[lowest].all()


@pytest.mark.parametrize(("difference", "kept"), [(0.0, 2), (3e-6, 2), (-3e-6, 2), (1e-3, 1)])
@pytest.mark.parametrize("level", [0.2, 2e-4, -0.2])
def test_words_tie_if_only_rounding_tells_their_dispersions_apart(level, difference, kept):
    dispersion = torch.tensor([[0.9, level, level + abs(level) * difference, 0.3]])
    assert int(word_weights.filter_words(dispersion, 0.25).sum()) == kept


def test_equal_words_do_not_raise_the_released_word_count():
    visual, words, pooled = texts(2)
    twins = torch.cat([words[:1]] * 10)
    assert score(visual, twins, pooled, q=0.2, word_count="floor").kept[:, 0].tolist() == [True] * 2 + [False] * 8


def test_blocks_are_scored_separately_and_normalized_together():
    visual, words, pooled = texts(14, n=60)
    blocks = [slice(0, 20), slice(20, 60)]
    together = score(visual, words, pooled, tau=0.1, blocks=blocks)
    alone = [score(visual[block], words, pooled, tau=0.1) for block in blocks]
    for b, (block, each) in enumerate(zip(blocks, alone, strict=True)):
        torch.testing.assert_close(together.entropy[:, b], each.entropy[:, 0])
        torch.testing.assert_close(together.weights[:, block], each.weights)
        torch.testing.assert_close(together.fused[block], each.fused)
    np.testing.assert_allclose(together.score, oracle.min_max(together.fused.numpy()), atol=1e-5)
    assert not torch.allclose(together.fused, score(visual, words, pooled, tau=0.1).fused)
    by_block = score(visual, words, pooled, tau=0.1, blocks=blocks, normalised_over="block")
    for block, each in zip(blocks, alone, strict=True):
        torch.testing.assert_close(by_block.score[block], each.score)


def test_lift_keeps_the_lowest_score_above_zero():
    visual, words, pooled = texts(15)
    got = score(visual, words, pooled, lift=1e-6)
    assert got.score.max() == 1
    assert 0 < got.score.min() < 1e-4


V, W, P = texts(11)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tau": 0.0}, "tau must be greater than 0, got 0"),
        ({"gamma": -1.0}, "gamma must be greater than 0, got -1"),
        ({"q": 0.0}, r"q must lie in \(0, 1\], got 0"),
        ({"q": 1.1}, "q must lie.*1.1"),
        ({"mu": 1.5}, r"mu must lie in \[0, 1\], got 1.5"),
        ({"sign": 0.5}, "sign must be.*0.5"),
        ({"dispersion": "gini"}, "'gini'; known: entropy, central_mass, variance"),
        ({"aggregation": "mean"}, "'mean'; known: neg_entropy, inverse_entropy"),
        ({"word_count": "round"}, "'round'; known: quantile, floor"),
        ({"normalised_over": "crop"}, "'crop'; known: image, block"),
        ({"lift": 1.0}, "lift must lie"),
        ({"words": None, "pooled": None}, "there is no text"),
        ({"pooled": None}, "pooled is missing"),
        ({"words": W[:, :5]}, "text has 5 channels, but visual has 24"),
        ({"pooled": P[:7]}, "pooled has 7 channels"),
        ({"words": W[0]}, "M×c"),
        ({"visual": V[0]}, "visual must be a matrix"),
        ({"visual": V.index_fill(0, torch.tensor([7]), float("nan"))}, r"visual\[7, 0\] is nan"),
        ({"words": W.index_fill(1, torch.tensor([2]), float("inf"))}, r"text\[0, 2\] is inf"),
        ({"visual": 1e30 * V}, "overflows"),
    ],
)
def test_invalid_input_is_rejected(change, message):
    with pytest.raises(ValueError, match=message):
        score(**{"visual": V, "words": W, "pooled": P, **change})


@pytest.mark.parametrize("normalised_over", ["image", "block"])
@pytest.mark.parametrize("dispersion", core.DISPERSIONS)
@pytest.mark.parametrize("aggregation", core.AGGREGATIONS)
def test_blocks_of_different_sizes_are_each_scored_by_themselves(aggregation, dispersion, normalised_over):
    if dispersion == "variance" and aggregation.startswith("inverse"):
        return
    visual, words, pooled = texts(20)
    blocks = [slice(0, 7), slice(7, 40), slice(40, 48)]
    settings = {"aggregation": aggregation, "dispersion": dispersion, "q": 0.4, "tau": 0.2, "gamma": 0.5}
    got = score(visual, words, pooled, blocks=blocks, normalised_over=normalised_over, **settings)
    alone = [score(visual[block], words, pooled, **settings) for block in blocks]
    torch.testing.assert_close(got.fused, torch.cat([each.fused for each in alone]))
    torch.testing.assert_close(got.weights, torch.cat([each.weights for each in alone], dim=1))
    torch.testing.assert_close(got.dispersion, torch.cat([each.dispersion for each in alone], dim=1))
    assert torch.equal(got.kept, torch.cat([each.kept for each in alone], dim=1))
    if normalised_over == "block":
        torch.testing.assert_close(got.score, torch.cat([each.score for each in alone]))


def test_without_waiting_invalid_input_leaves_nan_and_a_constant_map_is_marked():
    visual, words, pooled = texts(21)
    visual[3, 2] = torch.inf
    assert core.relevance(visual, words, pooled, wait=False).score.isnan().any()
    with pytest.raises(ValueError, match=r"visual\[3, 2\] is inf"):
        core.relevance(visual, words, pooled)
    even = core.relevance(torch.ones(9, 24), words, pooled, wait=False)
    assert bool(even.is_constant)
    assert even.notes == ()


@pytest.mark.parametrize("dispersion", ["entropy", "central_mass", "variance"])
def test_long_questions_are_scored_some_words_at_a_time(dispersion, monkeypatch):
    visual, words, pooled = texts(5, n=40, m=23)
    settings = {"dispersion": dispersion, "blocks": [slice(0, 16), slice(16, 40)], "mu": 0.5}
    whole = score(visual, words, pooled, **settings)
    computed = []
    distribution = word_weights.word_distribution

    def noted(maps, tau):
        computed.append(maps.similarity.numel())
        return distribution(maps, tau)

    monkeypatch.setattr(word_weights, "word_distribution", noted)
    monkeypatch.setattr(word_weights, "VALUES_AT_ONCE", 200)
    parts = score(visual, words, pooled, **settings)
    assert 0 < max(computed) <= 200
    torch.testing.assert_close(parts.dispersion, whole.dispersion)
    assert torch.equal(parts.kept, whole.kept)
    torch.testing.assert_close(parts.score, whole.score)
