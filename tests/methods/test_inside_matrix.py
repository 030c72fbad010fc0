"""Every method inside the language model on every family."""

from __future__ import annotations

import pytest
import torch
from helpers import tiny
from helpers.inside_methods import NAMES, Recording, method
from helpers.manual_pruning import answers
from helpers.prompts import CLIPS, IMAGES, Sizes, every_family

import eadp
from eadp.methods.inside import mean_tokens_per_layer, tokens_per_layer

every_method = pytest.mark.parametrize("name", NAMES)


@every_family
@every_method
def test_selections(family: str, name: str) -> None:
    """Exactly the budget, sorted, in range, the same every time, and both ways of counting it."""
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    depth = model.config.get_text_config().num_hidden_layers
    chosen = method(name, 3)
    with eadp.attach(model, method=chosen) as pruned:
        model(**inputs)
        first = pruned.last
        model(**inputs)
        again = pruned.last
    for one, two in zip(first, again, strict=True):
        kept = one.indices.tolist()
        assert kept == two.indices.tolist() == sorted({*kept})
        assert kept[0] >= 0
        assert kept[-1] < one.total
        cuts = chosen.cuts(one.total, depth)
        left = cuts[-1].keep
        assert one.tokens_after == len(one) == left == (4 if name == "dart" else 3)
        assert one.per_layer == tokens_per_layer(cuts, one.total, depth)
        assert one.tokens_layer_mean == pytest.approx(mean_tokens_per_layer(cuts, one.total, depth))
        assert one.method == name
        if left < one.total:
            assert one.layers[-1] == (cuts[-1].layer, left)
            assert any(f"{left} from layer {cuts[-1].layer} of {depth} on" in note for note in one.notes)
        else:
            assert f"{name}: all {left} tokens stay" in one.notes
    assert len(first) == sum(map(len, IMAGES[family]))


@every_family
@every_method
def test_keeping_everything_changes_no_bit(family: str, name: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    logits, (tokens, scores) = model(**inputs).logits, answers(model, **inputs)
    with eadp.attach(model, method=method(name, 1.0)) as pruned:
        assert torch.equal(model(**inputs).logits, logits)
        kept_tokens, kept_scores = answers(model, **inputs)
        assert all(one.tokens_after == one.total == one.tokens_layer_mean for one in pruned.last)
    assert torch.equal(kept_tokens, tokens)
    assert torch.equal(kept_scores, scores)


@pytest.mark.parametrize(
    ("family", "sizes", "name"),
    [
        *((family, IMAGES[family], name) for family in tiny.FAMILIES for name in NAMES),
        *((family, CLIPS[family], name) for family in CLIPS for name in ("sparsevlm", "pyramiddrop")),
    ],
)
def test_cache_and_batch_change_nothing(family: str, sizes: Sizes, name: str) -> None:
    """With the choice of the first prefill held fast, the whole sequence computed anew gives the same logits."""
    model, inputs = tiny.model(family), tiny.inputs(family, sizes)
    plain = answers(model, **inputs)[1]
    recording = Recording(of=method(name))
    with eadp.attach(model, method=recording) as pruned:
        _, logits = answers(model, **inputs)
        together = pruned.last
    with eadp.attach(model, method=recording.frozen()) as pruned:
        _, uncached = answers(model, **inputs, use_cache=False)
        _, static = answers(model, **inputs, cache_implementation="static", disable_compile=True)
        forward = model(**inputs).logits
        assert [one.indices.tolist() for one in pruned.last] == [one.indices.tolist() for one in together]
    torch.testing.assert_close(uncached, logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(static, logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(forward[:, -1], logits[:, 0], rtol=1e-4, atol=1e-4)
    assert forward.shape[:2] == inputs["input_ids"].shape
    assert (logits - plain).abs().max() > 0.1
    single = []
    with eadp.attach(model, method=method(name)) as pruned:
        for row in range(2):
            alone = tiny.inputs(family, sizes[row : row + 1], first=row)
            torch.testing.assert_close(answers(model, **alone)[1][0], logits[row], rtol=1e-4, atol=1e-4)
            single += pruned.last
    assert [one.indices.tolist() for one in single] == [one.indices.tolist() for one in together]


@every_family
@every_method
def test_beams(family: str, name: str) -> None:
    """Beams share their prompt's choice, and each prompt's beams are those that it has alone."""
    model, inputs = tiny.model(family), tiny.inputs(family, IMAGES[family])
    beams = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 4}
    with eadp.attach(model, method=method(name)) as pruned:
        together = answers(model, **inputs, **beams)[0]
        assert len(pruned.last) == sum(map(len, IMAGES[family]))
        for row in range(2):
            alone = tiny.inputs(family, IMAGES[family][row : row + 1], first=row)
            assert torch.equal(answers(model, **alone, **beams)[0], together[2 * row : 2 * row + 2])
