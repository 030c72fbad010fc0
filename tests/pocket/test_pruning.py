"""Pruning a trained model: answers stay correct with few tokens, and become wrong when a part is broken."""

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
def test_answers_stay_correct_with_an_eighth_of_the_tokens(report):
    whole, pruned = report.find_outcome(ALL_TOKENS), report.find_outcome("eadp", EIGHTH)
    assert whole.accuracy > 0.8
    assert pruned.mean_tokens == 32
    assert pruned.accuracy > 0.95 * whole.accuracy - 0.04  # With 96 questions, accuracies are known to about 4 %.
    assert pruned.accuracy > report.find_outcome("random", EIGHTH).accuracy


@pytest.mark.slow
def test_accuracy_is_low_without_the_image(report):
    assert report.find_outcome(BLIND).accuracy < 0.5
    assert report.find_outcome(MAJORITY).accuracy < 0.5


@pytest.mark.slow
def test_maps_highlight_the_things_in_question():
    found = measure_pointing(32, "validation")
    assert found.ratio > 2
    assert found.in_order > 0.8
    assert measure_pointing(32, "validation", sign=-1).ratio < 1


@pytest.fixture(scope="module")
def loaded():
    model, processor = eadp.load_pocket()
    batch = list(samples("validation", 24, kinds=("side", "colour", "shape")))
    inputs = processor(
        text=[sample.prompt for sample in batch],
        images=[sample.image for sample in batch],
        padding=True,
        return_tensors="pt",
    )
    return model, processor, batch, inputs


def correct(loaded, kinds):
    model, processor, batch, inputs = loaded
    with eadp.attach(model, processor, keep=EIGHTH):
        out = model.generate(**inputs, do_sample=False)
    answers = processor.batch_decode(out[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    return [sample.is_correct(answer) for sample, answer in zip(batch, answers, strict=True) if sample.kind in kinds]


def test_detaching_restores_the_model_bit_for_bit(loaded):
    model, processor, _, inputs = loaded
    with torch.no_grad():
        logits = model(**inputs).logits
        with eadp.attach(model, processor, keep=EIGHTH) as pruned:
            assert not torch.equal(model(**inputs).logits, logits)
            assert [len(selection) for selection in pruned.last] == [32] * 24
        assert torch.equal(model(**inputs).logits, logits)


def test_wrong_positions_spoil_the_answers(loaded, monkeypatch):
    """The pocket model infers where things are from the positions of their tokens."""
    assert sum(correct(loaded, {"side"})) >= 7
    original = before.logical_positions
    monkeypatch.setattr(before, "logical_positions", lambda ids, *where: original(ids, *where).flip(-1))
    assert sum(correct(loaded, {"side"})) <= 5


def test_a_mask_that_hides_kept_tokens_spoils_the_answers(loaded, monkeypatch):
    assert sum(correct(loaded, {"colour", "shape"})) >= 14

    def hiding(mask, valid, plan, *rest):
        shown = original(mask, valid, plan, *rest)
        shown = torch.ones_like(plan.index, dtype=torch.bool) if shown is None else shown.clone()
        shown[:, : 3 * shown.shape[1] // 4] = False
        return shown

    original = before.prefill_mask
    monkeypatch.setattr(before, "prefill_mask", hiding)
    assert sum(correct(loaded, {"colour", "shape"})) <= 10


def test_the_benchmark_writes_its_files(tmp_path):
    arguments = ["eval", "pocket", "--methods", "uniform", "--keep", "16", "--samples", "8", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.iterdir()} == {
        *("manifest.json", "samples.jsonl"),
        *("results.json", "table.md", "accuracy.png"),
    }
    assert "uniform 16" in (tmp_path / "table.md").read_text()
