"""Each method on a few tokens whose right answer is worked out by hand from what its paper says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from helpers.methods import BEFORE
from helpers.small_tensors import assert_weights_close, merge_weights, unit_vectors
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from eadp.core import (
    Selection,
    TextGuide,
    TowerAttention,
    VisualTokens,
    outliers,
)
from eadp.core.merging import add_position_after, add_position_before
from eadp.methods import get_method

# ── Every method ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", BEFORE)
@given(grids=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=4), data=st.data())
def test_exactly_the_budget_whatever_the_blocks(name: str, grids: list[tuple[int, int]], data: st.DataObject) -> None:
    """With and without CLS, from one token to all of them, where a method may be told to be exact. `downsample` keeps
    whole rows and columns: at most T."""
    total = sum(rows * columns for rows, columns in grids)
    keep, has_cls = data.draw(st.integers(1, total)), data.draw(st.booleans())
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    method = get_method(name, keep=keep).with_exact_count()
    seen_at = method.choose_resolutions(grids, square=False)
    extra = sum(rows * columns for rows, columns in seen_at)
    tokens = VisualTokens(
        torch.randn(total, 6, generator=g),
        torch.randn(total, 5, generator=g),
        grids,
        attention=[
            TowerAttention(layer, 24, torch.randn(total, 2, 3, generator=g), cls, torch.rand(total, generator=g), cls)
            for layer in method.vision_layers(24, "llava")
            for cls in [torch.rand(total, generator=g) if has_cls else None]
        ],
        tower=torch.randn(total, 4, generator=g),
        tower_cls=torch.randn(len(grids), 4, generator=g) if has_cls else None,
        tower_features=torch.randn(total, 4, generator=g),
        downsampled=torch.randn(extra, 6, generator=g) if seen_at else None,
        downsampled_grids=seen_at,
    )
    text = TextGuide(torch.randn(3, 5, generator=g), torch.randn(5, generator=g))
    assume(total > 1 or "text" not in method.needs)  # A map of one token says nothing: an error of its own.
    found = method.select(tokens, text)
    assert len(found) == (keep if name != "downsample" else extra) <= keep
    assert bool((found.indices.diff() > 0).all())
    assert 0 <= int(found.indices[0]) <= int(found.indices[-1]) < total == found.total
    assert sum(found.quotas) == len(found)
    assert found.quotas == tokens.quotas(found.indices)
    if found.merge is not None:
        beside = extra if seen_at else len(grids) * has_cls
        assert found.merge.shape in ((len(found), total), (len(found), total + beside))
        assert bool((found.merge >= 0).all())
        assert bool((found.merge.sum(1) > 0).all()), "no token is empty"


# ── Without attention ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_divprune() -> None:
    """1 − cos of directions at 0°, 10°, 90° and 200°, in the order of picking:

    nearest neighbours are 10° (0.02), 10° (0.02), 80° (0.83) and 110° (1.34) away: token 3 first;
    from it the others are 160° (1.94), 170° (1.98) and 110° (1.34) away: token 1;
    to their nearest of {3, 1}, token 0 has 0.02 and token 2 has 0.83: token 2.
    """
    tokens = VisualTokens(unit_vectors(0, 10, 90, 200), None, [(2, 2)])
    found = get_method("divprune", keep=3).select(tokens)
    assert found.order.tolist() == [3, 1, 2]
    assert found.indices.tolist() == [1, 2, 3]
    expected = [1 - math.cos(math.radians(angle)) for angle in (110, 170, 80)]
    torch.testing.assert_close(found.gains, torch.tensor(expected, dtype=found.gains.dtype), rtol=1e-5, atol=1e-5)


COSINES = (-1.0, -0.8, -0.5, 0.0)


def relevant_tokens(sign: float = -1.0) -> tuple[VisualTokens, TextGuide]:
    """Tokens 0 and 1 look alike, tokens 2 and 3 too, at a right angle to them. Their cosines with the question are
    −1, −0.8, −0.5 and 0."""
    aligned = torch.tensor([[c, math.sqrt(1 - c * c)] for c in COSINES]) * torch.tensor([[3.0], [1.0], [2.0], [5.0]])
    return VisualTokens(unit_vectors(0, 0, 90, 90), aligned, [(2, 2)]), TextGuide(
        None, torch.tensor([4.0, 0.0]), sign=sign
    )


def test_cdpruner() -> None:
    """r = −cos = 1, 0.8, 0.5, 0, which min-max leaves as they are. The kernel's diagonal is r² = 1, 0.64, 0.25, 0:
    token 0.

    Given it, token 1 has 0.64 − (0.8)² = 0 left, token 2 still 0.25: token 2, though token 1 is more relevant."""
    found = get_method("cdpruner", keep=2).select(*relevant_tokens())
    assert found.order.tolist() == [0, 2]
    torch.testing.assert_close(found.gains.float(), torch.tensor([1.0, 0.25]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.scores, torch.tensor([1.0, 0.8, 0.5, 0.0]), rtol=1e-5, atol=1e-5)


def test_cdpruner_weighs_relevance_by_theta() -> None:
    """θ = ½ gives α = ½/(2·½) = ½, so r = 1 becomes e^½ and the first variance e. θ = 0 leaves diversity alone: 1."""
    assert get_method("cdpruner", keep=1, theta=0.5).select(*relevant_tokens()).gains.item() == pytest.approx(
        math.e, rel=1e-5
    )
    assert get_method("cdpruner", keep=1, theta=0.0).select(*relevant_tokens()).gains.item() == pytest.approx(
        1, rel=1e-5
    )
    with pytest.raises(ValueError, match=r"theta must lie in \[0, 1\)"):
        get_method("cdpruner", keep=1, theta=1.0)


def test_cdpruner_averages_segments_and_takes_the_guides_sign() -> None:
    """A second segment that points the other way: (cos − cos) / 2 = 0 everywhere, a map that says nothing."""
    tokens, text = relevant_tokens()
    assert isinstance(text.pooled, Tensor)
    neither = get_method("cdpruner", keep=2).select(tokens, TextGuide(None, [text.pooled, -text.pooled]))
    assert neither.scores.tolist() == [1.0] * 4
    assert get_method("cdpruner", keep=1).select(*relevant_tokens(sign=+1.0)).indices.tolist() == [3]


def dots(*values: float) -> tuple[VisualTokens, TextGuide]:
    features = torch.randn(len(values), 3, generator=torch.Generator().manual_seed(0))
    return VisualTokens(features, torch.tensor(values)[:, None], [(1, len(values))]), TextGuide(None, torch.ones(1))


def test_trim() -> None:
    """The dots are negated: 3, −1, 0, −2, 1 ranks the tokens 3, 1, 2, 4, 0. Two stay, 1 and 3, by position, and the
    mean (0 + 2 + 4)/3 comes on top, for which the last free slot is 4."""
    found = get_method("trim", keep=2).select(*dots(3, -1, 0, -2, 1))
    assert found.indices.tolist() == [1, 3, 4]
    assert found.rows.tolist() == [1, 3, -1]
    assert_weights_close(found.merge, merge_weights(5, {1: 1}, {3: 1}, {0: 1 / 3, 2: 1 / 3, 4: 1 / 3}))
    torch.testing.assert_close(found.scores, torch.softmax(torch.tensor([-3.0, 1, 0, 2, -1]), 0))
    assert get_method("trim", keep=3, exact=True).select(*dots(3, -1, 0, -2, 1)).rows.tolist() == [1, 3, -1]


def test_trims_mean_is_last_where_the_last_token_is_kept() -> None:
    """Tokens 1 and 4 stay. The last free slot is 3, but the mean is the last row."""
    found = get_method("trim", keep=2).select(*dots(3, -1, 0, 1, -2))
    assert found.indices.tolist() == [1, 3, 4]
    assert found.rows.tolist() == [1, 4, -1]
    assert_weights_close(found.merge, merge_weights(5, {1: 1}, {4: 1}, {0: 1 / 3, 2: 1 / 3, 3: 1 / 3}))


@pytest.mark.parametrize(("keep", "kept"), [(0.79, [1, 2, 3]), (0.2, [3]), (0.19, []), (4, [1, 2, 3, 4]), (5, None)])
def test_trim_rounds_a_share_down(keep: float, kept: list[int] | None) -> None:
    """⌊0.79·5⌋ = 3; ⌊0.19·5⌋ = 0 leaves the mean of all; all of them leave nothing to take the mean of."""
    found = get_method("trim", keep=keep).select(*dots(3, -1, 0, -2, 1))
    assert (found.rows is None) == (kept is None)
    if kept is None:
        assert found.merge is None
        assert len(found) == 5
    else:
        assert found.rows.tolist() == [*kept, -1]


def test_trim_lets_the_image_decide() -> None:
    """Seven equal scores and a higher one: the quartiles are equal, so the threshold is that score, and one is above
    it."""
    found = get_method("trim").select(*dots(0, 0, 0, -5, 0, 0, 0, 0))
    assert found.indices.tolist() == [3, 7]
    assert_weights_close(found.merge, merge_weights(8, {3: 1}, dict.fromkeys((0, 1, 2, 4, 5, 6, 7), 1 / 7)))


def test_trim_sends_tokens_in_the_language_model_s_order() -> None:
    """Tokens 1, 2 and 3 stay, and stand in the sequence as 3, 1, 2."""
    tokens, text = dots(3, -1, 0, -2, 1)
    tokens = replace(tokens, sequence=torch.tensor([4, 2, 3, 1, 0]))
    assert get_method("trim", keep=3).select(tokens, text).rows.tolist() == [3, 1, 2, -1]


def test_trim_cuts_a_long_question_off() -> None:
    assert get_method("trim", keep=3).text_layout == "truncated"


def test_outliers() -> None:
    """Of 1 … 8, 14 and 15: Q1 = 3.25, Q3 = 7.75 by linear interpolation, so the threshold is 14.5."""
    assert outliers(torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8, 15, 14])).nonzero().flatten().tolist() == [8]


def test_methods_that_need_the_question_say_so() -> None:
    tokens, text = relevant_tokens()
    for name in ("cdpruner", "trim"):
        with pytest.raises(ValueError, match=f"{name} needs the question"):
            get_method(name, keep=2).select(tokens)
        with pytest.raises(ValueError, match=f"{name} needs `aligned`"):
            get_method(name, keep=2).select(VisualTokens(tokens.features, None, tokens.grids), text)


def test_room_for_one_more_token() -> None:
    kept = torch.tensor([0, 2, 5])
    assert add_position_after(kept, 6).tolist() == [0, 2, 4, 5]
    assert add_position_before(kept, 6).tolist() == [0, 1, 2, 5]
    with pytest.raises(ValueError, match="no room"):
        add_position_after(torch.arange(3), 3)


def test_selections_are_counted_by_block() -> None:
    tokens = VisualTokens(torch.randn(8, 2), None, [(2, 2), (1, 4)])
    assert tokens.quotas(torch.tensor([0, 3, 4])) == (2, 1)
    assert isinstance(get_method("random", keep=3).select(tokens), Selection)
