"""Properties of shortening a sequence and restoring it."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from eadp.runtime.compact import Compaction


@st.composite
def keeps(draw: st.DrawFn) -> torch.Tensor:
    """B×L, with at least one true per row."""
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    row = st.lists(st.booleans(), min_size=length, max_size=length).filter(any)
    return torch.tensor([draw(row) for _ in range(rows)])


@given(keeps())
def test_kept_columns_come_in_order_after_the_padding(keep: torch.Tensor) -> None:
    plan = Compaction.from_mask(keep)
    for row, index in enumerate(plan.index):
        kept = keep[row].nonzero().flatten().tolist()
        assert index[plan.length - len(kept) :].tolist() == kept
        valid = [True] * plan.length if plan.valid is None else plan.valid[row].tolist()
        assert valid == [False] * (plan.length - len(kept)) + [True] * len(kept)
    assert plan.length == int(keep.sum(1).max())
    assert plan.dropped == keep.shape[1] - plan.length


@given(keeps())
def test_a_dropped_column_shows_the_last_kept_one_before_it(keep: torch.Tensor) -> None:
    plan = Compaction.from_mask(keep)
    columns = torch.arange(keep.shape[1]).expand_as(keep)
    shown = plan.restore(plan.take_rows(columns[..., None].float()))[..., 0].long()
    for row, kept in enumerate(keep):
        for column in range(len(kept)):
            before = kept[: column + 1].nonzero().flatten().tolist() or kept.nonzero().flatten().tolist()[:1]
            assert shown[row, column] == before[-1]


@given(keeps())
def test_the_tail_stayed_in_every_row(keep: torch.Tensor) -> None:
    tail = Compaction.from_mask(keep).tail
    length = keep.shape[1]
    assert bool(keep[:, length - tail :].all())
    assert tail == length or not bool(keep[:, length - tail - 1].all())


@given(keeps())
def test_a_causal_mask_stays_causal(keep: torch.Tensor) -> None:
    """No query sees padding, except padding itself, which sees at least itself."""
    plan = Compaction.from_mask(keep)
    length = keep.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None].expand(len(keep), 1, -1, -1)
    square = plan.cut_mask(mask & keep[:, None, None, :])
    valid = torch.ones_like(plan.index, dtype=torch.bool) if plan.valid is None else plan.valid
    for row in range(len(keep)):
        for query in range(plan.length):
            seen = [key for key in range(plan.length) if square[row, 0, query, key]]
            if valid[row, query]:
                assert seen == [key for key in range(query + 1) if valid[row, key]]
            else:
                assert query in seen


@given(keeps(), st.randoms(use_true_random=False))
def test_columns_may_be_reordered(keep: torch.Tensor, random: Any) -> None:
    """Tokens are sorted by their places and restored to their columns. Masks are cut by the order of columns."""
    places = torch.tensor([random.sample(range(100), keep.shape[1]) for _ in keep])
    plan, stayed = Compaction.from_mask(keep, places), Compaction.from_mask(keep)
    for row, index in enumerate(plan.index):
        kept = keep[row].nonzero().flatten().tolist()
        assert index[plan.length - len(kept) :].tolist() == sorted(kept, key=lambda each: int(places[row, each]))
    columns = torch.arange(keep.shape[1]).expand_as(keep)[..., None].float()
    assert torch.equal(plan.restore(plan.take_rows(columns)), stayed.restore(stayed.take_rows(columns)))
    mask = torch.ones(keep.shape[1], keep.shape[1], dtype=torch.bool).tril()[None, None].expand(len(keep), 1, -1, -1)
    assert torch.equal(plan.cut_mask(mask), stayed.cut_mask(mask))
    end = keep.shape[1] - plan.tail
    assert bool(keep[:, end:].all())
    assert torch.equal(plan.index[:, plan.length - plan.tail :], torch.arange(end, keep.shape[1]).expand(len(keep), -1))
