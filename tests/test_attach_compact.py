"""Shortening and lengthening a sequence, as properties."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from eadp.runtime.compact import Compaction


@st.composite
def keeps(draw: st.DrawFn) -> torch.Tensor:
    """B×L with at least one true a row."""
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    row = st.lists(st.booleans(), min_size=length, max_size=length).filter(any)
    return torch.tensor([draw(row) for _ in range(rows)])


@given(keeps())
def test_kept_columns_come_in_order_behind_the_padding(keep: torch.Tensor) -> None:
    plan = Compaction.of(keep)
    for row, index in enumerate(plan.index):
        kept = keep[row].nonzero().flatten().tolist()
        assert index[plan.length - len(kept) :].tolist() == kept
        valid = [True] * plan.length if plan.valid is None else plan.valid[row].tolist()
        assert valid == [False] * (plan.length - len(kept)) + [True] * len(kept)
        assert (int(plan.first[row]), int(plan.last[row])) == (kept[0], kept[-1])
    assert plan.length == int(keep.sum(1).max())
    assert plan.dropped == keep.shape[1] - plan.length


@given(keeps())
def test_a_dropped_column_shows_the_last_kept_one_before_it(keep: torch.Tensor) -> None:
    plan = Compaction.of(keep)
    columns = torch.arange(keep.shape[1]).expand_as(keep)
    shown = plan.restore(plan.rows(columns[..., None].float()))[..., 0].long()
    for row, kept in enumerate(keep):
        for column in range(len(kept)):
            before = kept[: column + 1].nonzero().flatten().tolist() or kept.nonzero().flatten().tolist()[:1]
            assert shown[row, column] == before[-1]


@given(keeps())
def test_the_tail_stayed_in_every_row(keep: torch.Tensor) -> None:
    tail = Compaction.of(keep).tail
    length = keep.shape[1]
    assert bool(keep[:, length - tail :].all())
    assert tail == length or not bool(keep[:, length - tail - 1].all())


@given(keeps())
def test_a_causal_mask_stays_causal(keep: torch.Tensor) -> None:
    """And no query sees padding but padding itself, which sees at least itself."""
    plan = Compaction.of(keep)
    length = keep.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None].expand(len(keep), 1, -1, -1)
    square = plan.square(mask & keep[:, None, None, :])
    valid = torch.ones_like(plan.index, dtype=torch.bool) if plan.valid is None else plan.valid
    for row in range(len(keep)):
        for query in range(plan.length):
            seen = [key for key in range(plan.length) if square[row, 0, query, key]]
            if valid[row, query]:
                assert seen == [key for key in range(query + 1) if valid[row, key]]
            else:
                assert query in seen
