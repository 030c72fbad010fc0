"""The kernel of a decode step of padded prompts, against torch operations."""

import pytest
import torch

from eadp.core.triton import continuation
from eadp.core.triton.continuation import extend


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("axes", [None, (), (3,)])
@pytest.mark.parametrize("is_padded", [False, True])
def test_masks_and_positions_are_those_of_torch(monkeypatch, dtype, tokens, axes, is_padded):
    monkeypatch.setattr(continuation, "CELLS", 4)  # Several programs per row.
    generator = torch.Generator().manual_seed(0)
    rows, prefilled, offset, written = 3, 7, 5, 4
    mask = torch.randint(0, 2, (rows, prefilled + offset + written), generator=generator).to(dtype)
    # A slice of a wider table: its rows are not contiguous.
    valid = (torch.rand(rows, prefilled + 2, generator=generator) > 0.3)[:, :prefilled] if is_padded else None
    shift = torch.tensor([0, 2, 5])
    ids = None if axes is None else torch.randint(0, 99, (*axes, rows, tokens), generator=generator)
    start = 20

    found, positions = extend(valid, mask, prefilled, offset, dtype, shift, ids, start, tokens)

    known = torch.ones(rows, prefilled, dtype=torch.bool) if valid is None else valid
    assert found.dtype == dtype
    assert found.tolist() == torch.cat([known.to(dtype), mask[:, prefilled + offset :]], dim=1).tolist()
    logical = (start + torch.arange(tokens)).expand(rows, -1) if ids is None else ids
    assert positions is not None
    assert positions.tolist() == (logical - shift[:, None]).tolist()


def test_without_a_shift_there_are_no_positions():
    mask = torch.tensor([[0, 1, 1, 2], [1, 1, 1, 0]])
    found, positions = extend(torch.tensor([[False], [True]]), mask, 1, 1, torch.bool)
    assert positions is None
    assert found.tolist() == [[False, True, True], [True, True, False]]


def test_one_row_of_positions_serves_all_prompts():
    mask = torch.ones(2, 4, dtype=torch.long)
    _, positions = extend(None, mask, 2, 1, torch.long, torch.tensor([1, 2]), torch.tensor([[9]]), 0, 1)
    assert positions is not None
    assert positions.tolist() == [[8], [7]]
