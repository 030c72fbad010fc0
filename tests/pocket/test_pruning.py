"""Pruning a model that has learnt to see: answers stay right with few tokens, and go wrong when a part is broken."""

import pytest
import torch
from typer.testing import CliRunner

import eadp
from eadp.cli import app
from eadp.evaluate import pocket_benchmark as benchmark
from eadp.evaluate.maps import measure_pointing
from eadp.method_spec import ALL_TOKENS, BLIND, MAJORITY, MethodSpec
from eadp.pocket.samples import samples
from eadp.runtime import before

EIGHTH = 0.125


@pytest.fixture(scope="module")
def report():
    settings = [MethodSpec(ALL_TOKENS), MethodSpec(BLIND), MethodSpec("eadp", EIGHTH), MethodSpec("random", EIGHTH)]
    return benchmark.evaluate(settings, 96, "validation")


@pytest.mark.slow
def test_an_eighth_of_the_tokens_keeps_the_answers(report):
    whole, pruned = report.find_outcome(ALL_TOKENS), report.find_outcome("eadp", EIGHTH)
    assert whole.accuracy > 0.8
    assert pruned.mean_tokens == 32
    assert pruned.accuracy > 0.95 * whole.accuracy - 0.04  # 96 questions tell accuracies apart to some 4 %
    assert pruned.accuracy > report.find_outcome("random", EIGHTH).accuracy


@pytest.mark.slow
def test_a_model_that_sees_nothing_knows_little(report):
    assert report.find_outcome(BLIND).accuracy < 0.5
    assert report.find_outcome(MAJORITY).accuracy < 0.5


@pytest.mark.slow
def test_maps_point_at_what_is_asked():
    found = measure_pointing(32, "validation")
    assert found.ratio > 2
    assert found.in_order > 0.8
    assert measure_pointing(32, "validation", sign=-1).ratio < 1


@pytest.fixture(scope="module")
def asked():
    model, processor = eadp.load_pocket()
    batch = list(samples("validation", 24, kinds=("side", "colour", "shape")))
    inputs = processor(
        text=[sample.prompt for sample in batch],
        images=[sample.image for sample in batch],
        padding=True,
        return_tensors="pt",
    )
    return model, processor, batch, inputs


def right(asked, kinds):
    model, processor, batch, inputs = asked
    with eadp.attach(model, processor, keep=EIGHTH):
        out = model.generate(**inputs, do_sample=False)
    answers = processor.batch_decode(out[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    return [sample.right(answer) for sample, answer in zip(batch, answers, strict=True) if sample.kind in kinds]


def test_detaching_gives_the_model_back_bit_for_bit(asked):
    model, processor, _, inputs = asked
    with torch.no_grad():
        logits = model(**inputs).logits
        with eadp.attach(model, processor, keep=EIGHTH) as pruned:
            assert not torch.equal(model(**inputs).logits, logits)
            assert [len(selection) for selection in pruned.last] == [32] * 24
        assert torch.equal(model(**inputs).logits, logits)


def test_tokens_at_wrong_positions_spoil_the_answers(asked, monkeypatch):
    """The pocket model knows where things are by the positions of their tokens."""
    assert sum(right(asked, {"side"})) >= 7
    given = before.logical_positions
    monkeypatch.setattr(before, "logical_positions", lambda ids, *where: given(ids, *where).flip(-1))
    assert sum(right(asked, {"side"})) <= 5


def test_a_mask_that_hides_kept_tokens_spoils_the_answers(asked, monkeypatch):
    assert sum(right(asked, {"colour", "shape"})) >= 14

    def hiding(mask, valid, plan, *rest):
        shown = stock(mask, valid, plan, *rest)
        shown = torch.ones_like(plan.index, dtype=torch.bool) if shown is None else shown.clone()
        shown[:, : 3 * shown.shape[1] // 4] = False
        return shown

    stock = before.prefill_mask
    monkeypatch.setattr(before, "prefill_mask", hiding)
    assert sum(right(asked, {"colour", "shape"})) <= 10


def test_the_demo_shows_both_answers_and_writes_a_picture(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--questions", "1", "--out", str(tmp_path / "demo.png")])
    assert result.exit_code == 0, result.output
    assert "256 visual tokens → 32" in result.output
    assert (tmp_path / "demo.png").stat().st_size > 1000


def test_the_benchmark_writes_its_files(tmp_path):
    arguments = ["eval", "pocket", "--methods", "uniform", "--keep", "16", "--samples", "8", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.iterdir()} == {
        *("manifest.json", "samples.jsonl"),
        *("results.json", "table.md", "accuracy.png"),
    }
    assert "uniform 16" in (tmp_path / "table.md").read_text()
