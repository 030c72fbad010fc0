"""The whole method: against the oracle, over blocks, by coverage, presets, bad input."""

import dataclasses

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eadp import EADP, TextGuide, VisualTokens, methods
from eadp.methods.eadp import PUBLISHED


def scene(grids=((8, 8),), seed=0, m=7, c=16, d=24, layout=None):
    g = torch.Generator().manual_seed(seed)
    n = sum(rows * columns for rows, columns in grids)
    aligned = torch.randn(n, c, generator=g)
    words = torch.randn(m, c, generator=g) + 2 * aligned[torch.randint(n, (m,), generator=g)]
    tokens = VisualTokens(torch.randn(n, d, generator=g), aligned, grids, layout)
    return tokens, TextGuide(words, words.mean(0), [f"w{i}" for i in range(m)], padding=torch.randn(3, c, generator=g))


def expected(tokens, text, keep, beta=2.0, **settings):
    """Order of a single block by the paper's equations."""
    s = oracle.min_max(oracle.relevance(tokens.aligned, [text.tokens], [text.pooled], **settings))
    weights = oracle.smooth(s, *tokens.grids[0]) ** beta
    return weights, oracle.facility_location(oracle.similarity(tokens.features), weights, keep)[0]


@pytest.mark.parametrize("seed", range(5))
def test_the_whole_method_follows_the_papers_equations(seed):
    tokens, text = scene(seed=seed)
    picked = EADP(keep=16, tau=0.05, gamma=0.05).select(tokens, text)
    weights, order = expected(tokens, text, 16, tau=0.05, gamma=0.05)
    np.testing.assert_allclose(picked.relevance.polarized, weights, atol=1e-4)
    assert picked.order.tolist() == order
    assert picked.indices.tolist() == sorted(order)
    assert picked.total == 64
    assert picked.quotas == (16,)
    assert picked.mask.sum() == 16
    assert picked.words == tuple(text.words)
    assert 0 < picked.coverage <= picked.bound <= 1


def test_every_intermediate_is_there():
    tokens, text = scene()
    relevance = EADP(keep=8).select(tokens, text).relevance
    for field in dataclasses.fields(relevance):
        assert getattr(relevance, field.name) is not None, field.name


@given(
    grids=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=5),
    share=st.floats(0.01, 1.0),
    rule=st.sampled_from(["importance", "uniform"]),
)
def test_blocks_share_exactly_the_budget_and_keep_original_order(grids, share, rule):
    if sum(r * c for r, c in grids) < 2:
        grids = [*grids, (2, 2)]
    tokens, text = scene(tuple(grids))
    picked = EADP(keep=share, allocation=rule).select(tokens, text)
    assert len(picked) == sum(picked.quotas) == max(1, int(share * len(tokens) + 0.5))
    assert (picked.indices.diff() > 0).all()
    assert sorted(picked.order.tolist()) == picked.indices.tolist()
    assert (picked.gains.diff() <= 1e-9).all()
    assert picked.coverage <= picked.bound + 1e-12


def test_each_block_is_covered_by_its_own_tokens():
    tokens, text = scene(((5, 5), (5, 5)))
    picked = EADP(keep=12, allocation="uniform").select(tokens, text)
    weights = picked.relevance.polarized
    for block, quota in zip(tokens.blocks, picked.quotas, strict=True):
        order, _ = oracle.facility_location(oracle.similarity(tokens.features[block]), weights[block], quota)
        mine = [i - block.start for i in picked.order.tolist() if block.start <= i < block.stop]
        assert mine == order


def test_relevance_is_normalised_over_all_blocks_together():
    tokens, text = scene(((5, 5), (5, 5)))
    score = EADP(keep=12).select(tokens, text).relevance.score
    assert score.max() == pytest.approx(1, abs=1e-5)
    assert score.min() == 0
    assert len({score[block].argmax().item() + block.start for block in tokens.blocks} & {score.argmax().item()}) == 1
    assert any(score[block].max() < 0.999 for block in tokens.blocks)


@pytest.mark.parametrize("grids", [((8, 8),), ((5, 5), (4, 6), (3, 3))])
def test_a_budget_by_coverage_keeps_as_few_as_reach_it(grids):
    tokens, text = scene(grids)
    picked = EADP(coverage=0.8).select(tokens, text)
    assert picked.coverage >= 0.8 - 1e-9
    assert picked.coverage - picked.gains[-1].item() / (picked.gains.sum().item() / picked.coverage) < 0.8
    assert picked.coverage <= picked.bound <= 1
    assert len(EADP(coverage=0.8, keep=5).select(tokens, text)) == 5
    assert len(EADP(coverage=1.0).select(tokens, text)) <= len(tokens)


def test_global_guided_uses_the_layout_of_the_tokens():
    tokens, text = scene(((4, 4), (4, 4), (4, 4)), layout=(1, 2))
    assert sum(EADP(keep=20, allocation="global_guided").select(tokens, text).quotas) == 20
    with pytest.raises(ValueError, match="layout="):
        EADP(keep=20, allocation="global_guided").select(dataclasses.replace(tokens, layout=None), text)


def test_beta_zero_ignores_the_question():
    tokens, text = scene(seed=1)
    other = dataclasses.replace(text, tokens=-text.tokens, pooled=-text.pooled)
    level = EADP(keep=9, beta=0)
    assert level.select(tokens, text).order.tolist() == level.select(tokens, other).order.tolist()
    sharp = EADP(keep=9)
    assert sharp.select(tokens, text).order.tolist() != sharp.select(tokens, other).order.tolist()


def test_a_block_that_the_map_leaves_at_zero_is_covered_evenly():
    tokens, text = scene(((4, 4), (4, 4)))
    aligned = tokens.aligned.clone()
    aligned[16:] = aligned[EADP(keep=1).relevance(tokens, text).score.argmin()]
    picked = EADP(keep=8, allocation="uniform").select(dataclasses.replace(tokens, aligned=aligned), text)
    assert picked.relevance.polarized[16:].max() == 0
    order, _ = oracle.facility_location(oracle.similarity(tokens.features[16:]), np.ones(16), 4)
    assert [i - 16 for i in picked.order.tolist() if i >= 16] == order


def test_a_matrix_beyond_the_limit_is_not_needed():
    tokens, text = scene(((12, 12),))
    dense = EADP(keep=20).select(tokens, text)
    rows = EADP(keep=20, matrix_limit=1000).select(tokens, text)
    assert rows.order.tolist() == dense.order.tolist()


def test_selection_is_deterministic_and_leaves_its_input_alone():
    tokens, text = scene(((6, 6), (6, 6)))
    before = [x.clone() for x in (tokens.features, tokens.aligned, text.tokens, text.pooled)]
    first, second = (EADP(keep=15).select(tokens, text) for _ in range(2))
    assert torch.equal(first.order, second.order)
    assert torch.equal(first.gains, second.gains)
    for was, now in zip(before, (tokens.features, tokens.aligned, text.tokens, text.pooled), strict=True):
        assert torch.equal(was, now)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype(dtype):
    tokens, text = scene()
    tokens = VisualTokens(tokens.features.to(dtype), tokens.aligned.to(dtype), tokens.grids)
    text = TextGuide(text.tokens.to(dtype), text.pooled.to(dtype))
    picked = EADP(keep=10).select(tokens, text)
    upcast = EADP(keep=10).select(
        VisualTokens(tokens.features.double(), tokens.aligned.double(), tokens.grids),
        TextGuide(text.tokens.double(), text.pooled.double()),
    )
    assert picked.order.tolist() == upcast.order.tolist()


def test_features_that_need_gradients_are_fine():
    tokens, text = scene()
    tokens = dataclasses.replace(
        tokens, features=tokens.features.requires_grad_(), aligned=tokens.aligned.requires_grad_()
    )
    assert len(EADP(keep=10).select(tokens, text)) == 10


def test_no_words_left_is_said_in_the_result():
    tokens, text = scene()
    picked = EADP(keep=10).select(tokens, dataclasses.replace(text, tokens=text.tokens[:0], words=[]))
    assert "no words" in picked.notes[0]


def test_the_paper_preset_is_the_defaults_with_floors():
    assert EADP.paper(64) == EADP(keep=64, exact=False)


@pytest.mark.parametrize("family", PUBLISHED)
def test_the_published_preset_counts_padding_as_words(family):
    tokens, text = scene(((4, 4), (4, 4)))
    method = EADP.published(8, family)
    assert method.padded_text
    assert method.positions == "renumber"
    with_padding = dataclasses.replace(text, tokens=torch.cat([text.tokens, text.padding]))
    same = dataclasses.replace(method, padded_text=False).select(tokens, with_padding)
    assert method.select(tokens, text).order.tolist() == same.order.tolist()
    with pytest.raises(ValueError, match="must carry `padding`"):
        method.select(tokens, dataclasses.replace(text, padding=None))


def test_methods_are_found_by_name():
    assert methods.make("eadp", keep=5) == EADP(keep=5)
    with pytest.raises(ValueError, match=r"'edap'; known: .*eadp"):
        methods.make("edap", keep=5)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({}, ValueError, "keep=.*coverage="),
        ({"keep": 0}, ValueError, "at least 1, got 0"),
        ({"keep": 1.5}, ValueError, "share.*1.5"),
        ({"keep": True}, TypeError, "True"),
        ({"keep": "64"}, TypeError, "'64'"),
        ({"coverage": 0.0}, ValueError, "coverage.*0"),
        ({"keep": 4, "tau": 0}, ValueError, "tau"),
        ({"keep": 4, "q": 2}, ValueError, "q must"),
        ({"keep": 4, "smoothing": 2}, ValueError, "odd"),
        ({"keep": 4, "beta": -1}, ValueError, "beta"),
        ({"keep": 4, "allocation": "fair"}, ValueError, "known: importance"),
        ({"keep": 4, "dispersion": "x"}, ValueError, "known: entropy"),
        ({"keep": 4, "aggregation": "x"}, ValueError, "known: neg_entropy"),
        ({"keep": 4, "backend": "x"}, ValueError, "known: auto"),
        ({"keep": 4, "positions": "x"}, ValueError, "known: keep, renumber"),
    ],
)
def test_bad_settings_fail_before_anything_is_computed(settings, error, message):
    with pytest.raises(error, match=message):
        EADP(**settings)


def test_unknown_families_are_listed():
    with pytest.raises(ValueError, match="'bert'; known: llava"):
        EADP.published(8, "bert")


F, A = torch.randn(12, 5), torch.randn(12, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((F, A, [(3, 5)]), "hold 15 tokens, but features has 12"),
        ((F, A, []), "at least 1×1"),
        ((F, A, [(0, 3)]), "at least 1×1"),
        ((F, A[:5], [(3, 4)]), "each of the 12 tokens"),
        ((F[0], A, [(3, 4)]), "N×d"),
        ((F[:0], A[:0], [(1, 1)]), "N×d"),
    ],
)
def test_tokens_that_do_not_fit_together(arguments, message):
    with pytest.raises(ValueError, match=message):
        VisualTokens(*arguments)


def test_what_eadp_cannot_do_without():
    tokens, text = scene()
    with pytest.raises(ValueError, match="more than the 64 tokens"):
        EADP(keep=65).select(tokens, text)
    with pytest.raises(ValueError, match="needs the question"):
        EADP(keep=5).select(tokens)
    with pytest.raises(ValueError, match="needs `aligned`"):
        EADP(keep=5).select(dataclasses.replace(tokens, aligned=None), text)
    with pytest.raises(ValueError, match="there is no text"):
        EADP(keep=5).select(tokens, TextGuide(None, None))
    bad = tokens.features.clone()
    bad[3, 1] = float("nan")
    with pytest.raises(ValueError, match=r"features\[3, 1\] is nan"):
        EADP(keep=5).select(dataclasses.replace(tokens, features=bad), text)
    with pytest.raises(ValueError, match="constant"):
        EADP(keep=5).select(dataclasses.replace(tokens, aligned=torch.ones_like(tokens.aligned)), text)
