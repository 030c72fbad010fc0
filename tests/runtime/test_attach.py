"""For every family, pruned generation is the same as if the dropped tokens had never existed."""

from __future__ import annotations

import pytest
import torch
from helpers import tiny
from helpers.manual_pruning import answers, shortened
from helpers.prompts import IMAGES, Sizes, every_family, every_prompt
from helpers.simple_methods import EverySecond, Ragged

import eadp
from eadp.methods import Method

choices = pytest.mark.parametrize("method", [EverySecond(), Ragged()], ids=["half", "ragged"])
positions = pytest.mark.parametrize("positions", ["keep", "renumber"])


@every_prompt
@positions
def test_keeping_everything_changes_no_bit(family: str, sizes: Sizes, positions: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, sizes)
    logits, (tokens, scores) = model(**inputs).logits, answers(model, **inputs)
    with eadp.attach(model, method=EverySecond(step=1), positions=positions) as pruned:
        assert torch.equal(model(**inputs).logits, logits)
        kept_tokens, kept_scores = answers(model, **inputs)
    assert torch.equal(kept_tokens, tokens)
    assert torch.equal(kept_scores, scores)
    assert all(len(selection) == selection.total for selection in pruned.last)


@every_prompt
@choices
@positions
def test_cache_and_batch_change_nothing(family: str, sizes: Sizes, method: Method, positions: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, sizes)
    with eadp.attach(model, method=method, positions=positions) as pruned:
        _tokens, logits = answers(model, **inputs)
        together = pruned.last
        _, uncached = answers(model, **inputs, use_cache=False)
        torch.testing.assert_close(logits, uncached, rtol=1e-4, atol=1e-4)
        forward = model(**inputs).logits
        torch.testing.assert_close(forward[:, -1], logits[:, 0], rtol=1e-4, atol=1e-4)
        assert forward.shape[1] == inputs["input_ids"].shape[1]
        single = []
        for row in range(2):
            alone = tiny.inputs(family, sizes[row : row + 1], first=row)
            torch.testing.assert_close(answers(model, **alone)[1][0], logits[row], rtol=1e-4, atol=1e-4)
            single += pruned.last
    assert [each.indices.tolist() for each in single] == [each.indices.tolist() for each in together]
    assert any(len(each) < each.total for each in together)


@every_family
@pytest.mark.parametrize("order", [1, -1], ids=["first", "second"])
def test_a_batch_of_a_prompt_without_images_and_one_with_images(family: str, order: int) -> None:
    model, sizes = tiny.model(family), [IMAGES[family][0], []][::order]
    inputs = tiny.inputs(family, sizes)
    with eadp.attach(model, method=Ragged()) as pruned:
        _, logits = answers(model, **inputs)
        assert len(pruned.last) == 1
        for row in range(2):
            alone = tiny.inputs(family, sizes[row : row + 1], first=row)
            torch.testing.assert_close(answers(model, **alone)[1][0], logits[row], rtol=1e-4, atol=1e-4)


@every_prompt
@choices
@positions
def test_same_as_pruning_by_hand(family: str, sizes: Sizes, method: Method, positions: str) -> None:
    model = tiny.model(family)
    inputs = tiny.inputs(family, sizes[1:], first=1)
    with eadp.attach(model, method=method, positions=positions) as pruned:
        tokens, logits = answers(model, **inputs)
        keep = pruned.columns
    by_hand = shortened(model, inputs, keep, positions)
    assert by_hand["input_ids"].shape[1] < inputs["input_ids"].shape[1]
    plain_tokens, plain_logits = answers(model, **by_hand)
    assert torch.equal(plain_tokens, tokens)
    torch.testing.assert_close(plain_logits, logits, rtol=1e-4, atol=1e-4)
