"""The whole method: against the oracle, over blocks, by coverage, presets, bad input."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers import oracle
from hypothesis import given
from hypothesis import strategies as st

from eadp import EADP, TextGuide, VisualTokens, core, methods
from eadp.methods.eadp import PUBLISHED


def scene(grids=((8, 8),), seed=0, m=7, c=16, d=24, layout=None):
    g = torch.Generator().manual_seed(seed)
    n = sum(rows * columns for rows, columns in grids)
    aligned = torch.randn(n, c, generator=g)
    words = torch.randn(m, c, generator=g) + 2 * aligned[torch.randint(n, (m,), generator=g)]
    tokens = VisualTokens(torch.randn(n, d, generator=g), aligned, grids, layout)
    return tokens, TextGuide(words, words.mean(0), [f"w{i}" for i in range(m)])


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
    assert len(picked) == sum(picked.quotas) == max(1, round(share * len(tokens)))
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
    assert picked.coverage >= 0.8 - 1e-5
    one_fewer = EADP(coverage=0.8, keep=len(picked) - 1).select(tokens, text)
    assert one_fewer.order.tolist() == picked.order[:-1].tolist()
    assert one_fewer.coverage < 0.8
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
    aligned[16:] = aligned[EADP(keep=1, scope="image").relevance(tokens, text).score.argmin()]
    picked = EADP(keep=8, scope="image", allocation="uniform").select(
        dataclasses.replace(tokens, aligned=aligned), text
    )
    assert picked.relevance.polarized[16:].max() == 0
    order, _ = oracle.facility_location(oracle.similarity(tokens.features[16:]), np.ones(16), 4)
    assert [i - 16 for i in picked.order.tolist() if i >= 16] == order


def test_a_matrix_beyond_the_limit_is_not_needed():
    tokens, text = scene(((12, 12),))
    dense = EADP(keep=20).select(tokens, text)
    rows = EADP(keep=20, matrix_limit=1000).select(tokens, text)
    assert rows.order.tolist() == dense.order.tolist()


@pytest.mark.parametrize("grids", [((12, 12),), ((5, 5), (4, 6))])
@pytest.mark.parametrize("budget", [{"keep": 20}, {"coverage": 0.5}])
def test_the_rows_backend_also_takes_what_fits_into_a_matrix(grids, budget):
    tokens, text = scene(grids)
    dense, rows = EADP(**budget).select(tokens, text), EADP(**budget, backend="rows").select(tokens, text)
    assert rows.order.tolist() == dense.order.tolist()
    assert rows.coverage == pytest.approx(dense.coverage, abs=1e-5)


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


@pytest.mark.parametrize("grids", [((8, 8),), ((6, 6),) * 5, ((4, 5), (3, 3), (6, 2)), ((1, 7), (5, 5))])
@pytest.mark.parametrize("seed", range(3))
def test_the_paper_preset_is_algorithm_1_with_its_batch_of_blocks(grids, seed):
    tokens, text = scene(grids, seed=seed)
    budget = len(tokens) // 4
    picked = EADP.paper(budget, tau=0.05, gamma=0.05).select(tokens, text)
    weights, quotas, picks = oracle.algorithm_1(
        tokens.features, tokens.aligned, text.tokens, text.pooled, grids, budget, tau=0.05, gamma=0.05
    )
    np.testing.assert_allclose(picked.relevance.polarized, np.concatenate(weights), atol=1e-4)
    assert picked.quotas == tuple(quotas)
    for block, order in zip(tokens.blocks, picks, strict=True):
        assert [i - block.start for i in picked.order.tolist() if block.start <= i < block.stop] == order


def test_the_paper_preset_is_the_defaults_with_floors():
    assert EADP.paper(64) == EADP(keep=64, rounding="paper")
    assert methods.get_method("eadp", preset="paper", family="qwen2_5_vl", keep=64) == EADP.paper(64)


@pytest.mark.parametrize("family", PUBLISHED)
def test_the_published_preset_counts_every_slot_as_a_word(family):
    tokens, text = scene(((4, 4), (4, 4)))
    method = EADP.published(8, family)
    assert method == methods.get_method("eadp", preset="published", family=family, keep=8)
    assert method.text_layout == "slots"
    assert method.positions_for(family) == "renumber"
    assert method.newlines == "none"
    kept = method.select(tokens, text).relevance.kept
    assert kept.sum(0).tolist() == [max(1, int(method.q * 7))] * kept.shape[1]
    assert EADP.published(8, family, mu=1.0).mu == 1.0


def test_one_scope_for_the_words_or_one_pool_for_everything():
    tokens, text = scene(((4, 4), (4, 4)))
    block, image, pool = (EADP(keep=8, scope=scope).select(tokens, text) for scope in ("block", "image", "pool"))
    assert block.relevance.entropy.shape == (7, 2)
    assert image.relevance.entropy.shape == pool.relevance.entropy.shape == (7, 1)
    torch.testing.assert_close(image.relevance.score, pool.relevance.score)
    assert torch.equal(pool.relevance.smoothed, pool.relevance.score)
    assert not torch.equal(image.relevance.smoothed, image.relevance.score)
    whole = oracle.facility_location(oracle.similarity(tokens.features), pool.relevance.polarized.numpy(), 8)[0]
    assert pool.order.tolist() == whole


@pytest.mark.parametrize(("grid", "smoothed"), [((3, 12), (6, 6)), ((3, 5), None), ((12, 48), (24, 24))])
def test_the_release_guesses_the_map_from_the_number_of_tokens(grid, smoothed):
    tokens, text = scene((grid,))
    found = EADP(keep=4, smoothing_grid="guessed").select(tokens, text).relevance
    expected = found.score if smoothed is None else oracle.smooth(found.score, *smoothed)
    np.testing.assert_allclose(found.smoothed, expected, atol=1e-5)


def test_tokens_can_represent_each_other_by_the_towers_rows():
    tokens, text = scene()
    picked = EADP(keep=9, similarity="aligned").select(tokens, text)
    weights = picked.relevance.polarized.numpy()
    assert picked.order.tolist() == oracle.facility_location(oracle.similarity(tokens.aligned), weights, 9)[0]


def test_the_ablations_pick_by_weight_alone_or_by_a_dpp():
    tokens, text = scene()
    top = EADP(keep=9, selection="topk").select(tokens, text)
    weights = top.relevance.polarized
    assert top.order.tolist() == weights.sort(descending=True, stable=True).indices[:9].tolist()
    varied = EADP(keep=9, selection="dpp").select(tokens, text)
    w = weights.numpy()
    assert varied.order.tolist() == oracle.dpp(w[:, None] * oracle.cosine(tokens.features, tokens.features) * w, 9)
    assert top.coverage is varied.coverage is None
    with pytest.raises(ValueError, match=r"only facility_location.*keep="):
        EADP(coverage=0.9, selection="dpp")


def test_methods_are_found_by_name():
    assert methods.get_method("eadp", keep=5) == EADP(keep=5)
    with pytest.raises(ValueError, match=r"'edap'; known: .*eadp"):
        methods.get_method("edap", keep=5)


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
        ({"keep": 4, "words": "x"}, ValueError, "known: words, slots"),
        ({"keep": 4, "scope": "x"}, ValueError, "known: block, image, pool"),
        ({"keep": 4, "rounding": "x"}, ValueError, "known: exact, paper, released"),
        ({"keep": 4, "selection": "x"}, ValueError, "known: facility_location, dpp, topk"),
        ({"keep": 4, "top_words": 0}, ValueError, "top_words"),
    ],
)
def test_bad_settings_fail_before_anything_is_computed(settings, error, message):
    with pytest.raises(error, match=message):
        EADP(**settings)


def test_unknown_families_are_listed():
    with pytest.raises(ValueError, match="'bert'; known: llava"):
        EADP.published(8, "bert")
    with pytest.raises(ValueError, match="'notes'; known: paper, published"):
        methods.get_method("eadp", preset="notes", family="llava", keep=8)
    with pytest.raises(ValueError, match="give family="):
        methods.get_method("eadp", preset="published", keep=8)
    with pytest.raises(ValueError, match="divprune has no preset 'published'"):
        methods.get_method("divprune", preset="published", family="llava", keep=8)


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
    with pytest.raises(ValueError, match="more than the image's 64 tokens"):
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


def test_an_image_that_the_text_does_not_tell_apart_is_covered_evenly():
    tokens, text = scene()
    blank = dataclasses.replace(tokens, aligned=torch.ones_like(tokens.aligned))
    picked = EADP(keep=5).select(blank, text)
    assert "covered evenly" in picked.notes[0]
    assert picked.order.tolist() == oracle.facility_location(oracle.similarity(tokens.features), np.ones(64), 5)[0]


def clip(seed=0, frames=4):
    tokens, text = scene(((4, 4),) * frames, seed=seed)
    return dataclasses.replace(tokens, is_clip=True), text


def test_time_covers_a_clip_as_a_whole():
    tokens, text = clip()
    method = EADP(keep=20, time=2)
    picked = method.select(tokens, text)
    weights = method.relevance(tokens, text).polarized
    expected = core.facility_location_over_time(tokens.features, weights, 4, 2, 20)
    assert picked.order.tolist() == expected.indices.tolist()
    assert (len(picked), sum(picked.quotas)) == (20, 20)
    assert (picked.coverage, picked.bound) == (expected.coverage, expected.bound)
    assert min(EADP(keep=20, time=2, per_frame=4).select(tokens, text).quotas) >= 4
    by_coverage = EADP(coverage=0.6, time=2).select(tokens, text)
    assert by_coverage.coverage >= 0.6 - 1e-5


def test_time_changes_nothing_on_an_image():
    tokens, text = scene(((4, 4), (4, 4)))
    assert EADP(keep=9, time=2).select(tokens, text).order.tolist() == EADP(keep=9).select(tokens, text).order.tolist()


def test_time_on_a_clip_keeps_more_of_it_represented_than_frame_by_frame():
    """By its own objective, at the same budget."""
    tokens, text = clip()
    still = dataclasses.replace(tokens, features=tokens.features[:16].repeat(4, 1))
    assert EADP(keep=8, time=2).select(still, text).coverage > EADP(keep=8).select(still, text).coverage


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"time": 2, "selection": "dpp"}, "time= needs selection='facility_location'"),
        ({"per_frame": 2}, "per_frame= needs time="),
        ({"time_decay": 0.1}, "time_decay= needs time="),
        ({"time": -1}, "time"),
    ],
)
def test_time_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        EADP(keep=8, **settings)
