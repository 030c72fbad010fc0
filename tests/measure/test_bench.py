"""`bench` on a tiny model with random weights: what each row reports, and that the model is restored."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from eadp.architectures import untrained
from eadp.core import Selection
from eadp.loading import load_guide, load_model
from eadp.measure import flops
from eadp.measure.bench import BenchReport, BenchResult, BenchRow, BenchRun, bench, cache_bytes
from eadp.measure.op_counts import OperationCounts
from eadp.measure.samples import pocket_samples
from eadp.measure.stopwatch import PARTS, PRUNER, make_clock
from eadp.methods import BeforeMethod, get_method
from eadp.models import adapter_of
from eadp.models.prompt import build_inputs
from eadp.utils.images import make_square

TINY, TOKENS = "random:tiny-llava", 576


@pytest.fixture(scope="module")
def loaded():
    model, processor = load_model(TINY)
    side = untrained.image_side(model.config)
    inputs = [
        build_inputs(processor, [make_square(each.load_image(), side)], [each.question]) for each in pocket_samples(3)
    ]
    return model, processor, load_guide(TINY, model, processor), inputs


@pytest.fixture(scope="module")
def report(loaded):
    model, processor, guide, inputs = loaded
    methods = [get_method(name, keep=64) for name in ("eadp", "cdpruner", "divprune", "fastv", "visionzip")]
    return bench(
        TINY, model, processor, methods, inputs, clock=make_clock("cpu", model.device), guide=guide, new_tokens=3
    )


def result_of(report, name):
    return next(each for each in report.results if each.row.name == name)


def test_the_unpruned_model_comes_first_and_has_ratio_one(report):
    assert [str(each.row) for each in report.results[:2]] == ["all tokens", "eadp 64"]
    assert report.ratio(report.baseline, "prefill").median == report.expected_ratio(report.baseline) == 1
    assert all(len(each.runs) == 2 for each in report.results)  # Three samples, one of them for the warm-up.


def test_parts_add_up_to_the_prefill(report):
    for each in report.results:
        for run in each.runs:
            assert set(run.parts) == set(PARTS)
            assert sum(run.parts.values()) == pytest.approx(run.prefill, rel=1e-9)
            assert 0 < run.prefill < run.first_token < run.latency
            assert run.latency == pytest.approx(run.first_token + 2 * run.decode)


def test_the_same_region_is_timed_for_every_row(report):
    for each in report.results:
        assert all(run.parts["vision tower"] > 0 and run.parts["language model"] > 0 for run in each.runs)


def parts_of(report, name):
    return {part for part in PRUNER if result_of(report, name).runs[0].parts[part] > 0}


def test_each_method_has_the_parts_that_it_runs(report):
    assert parts_of(report, "all tokens") == set()
    assert parts_of(report, "eadp") == set(PRUNER)
    assert parts_of(report, "cdpruner") == set(PRUNER) - {"smoothing"}
    assert parts_of(report, "divprune") == {"similarity", "selection", "compaction"}
    assert parts_of(report, "fastv") == {"selection", "compaction"}
    assert parts_of(report, "visionzip") == {"relevance", "selection", "compaction"}


def test_cache_bytes_by_hand(report, loaded):
    # Four layers, keys and values, two heads of 16 numbers of four bytes.
    bytes_per_token = 4 * 2 * 2 * 16 * 4
    lengths = [inputs["input_ids"].shape[1] for inputs in loaded[3][1:]]
    assert [run.cache_bytes for run in report.baseline.runs] == [length * bytes_per_token for length in lengths]
    shorter = [(length - TOKENS + 64) * bytes_per_token for length in lengths]
    assert [run.cache_bytes for run in result_of(report, "eadp").runs] == shorter
    run = result_of(report, "fastv").runs[0]
    assert run.cache_bytes == (lengths[0] - TOKENS + run.layer_mean) * bytes_per_token


def test_cache_bytes_sums_the_tensors_of_a_cache(loaded):
    model, *_, inputs = loaded
    cache = model(**inputs[0], use_cache=True).past_key_values
    assert cache_bytes(cache) == sum(2 * layer.keys.nbytes for layer in cache.layers)


def test_token_counts_after_the_cuts_and_averaged_over_the_layers(report):
    assert (report.baseline.runs[0].after, report.baseline.runs[0].layer_mean) == (TOKENS, TOKENS)
    assert (result_of(report, "eadp").runs[0].after, result_of(report, "eadp").runs[0].layer_mean) == (64, 64)
    assert (report.baseline.runs[0].sent, result_of(report, "eadp").runs[0].sent) == (TOKENS, 64)
    fastv = result_of(report, "fastv").runs[0]
    assert (fastv.visual, fastv.after) == (TOKENS, 64)
    assert fastv.layer_mean == (TOKENS + 3 * 64) / 4


def test_counted_multiply_adds_equal_those_computed_from_the_configuration(report, loaded):
    model, *_, inputs = loaded
    text = inputs[0]["input_ids"].shape[1] - TOKENS
    assert report.baseline.operations.multiply_adds == flops.count_prefill(model.config, [(24, 24)], None, text).total
    # `words` is only approximate here, and the cosines with words cost next to nothing.
    expected = flops.count_prefill(model.config, [(24, 24)], 64, text, words=8).total
    assert result_of(report, "eadp").operations.multiply_adds == pytest.approx(expected, rel=1e-3)


def test_the_model_is_restored_after_a_measurement(report, loaded):
    model = loaded[0]
    adapter = adapter_of(model)
    assert not [name for name in ("forward", "get_image_features") if name in vars(adapter.base)]
    assert "forward" not in vars(adapter.text_model)
    hooks = [each for module in model.modules() for each in (module._forward_hooks, module._forward_pre_hooks)]
    assert not [hook for each in hooks for hook in each.values() if hook.__module__.startswith("eadp")]


@dataclass(frozen=True)
class CallRecorder(BeforeMethod):
    """Keeps the first tokens and records every call."""

    name: ClassVar[str] = ""
    mark: str = ""
    calls: list = field(default_factory=list)

    def select(self, tokens, text=None):
        self.calls.append(self.mark)
        return Selection(torch.arange(8), len(tokens), self.mark)


def test_every_second_round_runs_the_rows_in_reverse_order(loaded):
    model, processor, _, inputs = loaded
    calls: list[str] = []
    methods = [CallRecorder(mark=mark, calls=calls, keep=8) for mark in "ab"]
    bench(TINY, model, processor, methods, inputs, clock=make_clock("cpu", model.device), new_tokens=1, warmup=0)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"  # Operations are counted once, then three rounds are timed.


def test_every_run_encodes_the_question_again(loaded, monkeypatch):
    model, processor, guide, inputs = loaded
    encoded = []
    encode = guide._encode
    monkeypatch.setattr(guide, "_encode", lambda question, layout: encoded.append(question) or encode(question, layout))
    methods = [get_method("eadp", keep=keep) for keep in (64, 32)]
    same = [inputs[0]] * 2
    bench(TINY, model, processor, methods, same, clock=make_clock("cpu", model.device), guide=guide, new_tokens=1)
    assert len(encoded) == 2 + 2 * 2  # Each row is counted once, and then runs twice.


def test_a_measurement_needs_more_samples_than_the_warm_up(loaded):
    model, processor, _, inputs = loaded
    with pytest.raises(ValueError, match="nothing to measure"):
        bench(TINY, model, processor, [], inputs[:1], clock=make_clock("cpu", model.device), new_tokens=1)


def make_run(prefill, latency):
    return BenchRun(prefill, prefill, None, latency, dict.fromkeys(PARTS, prefill / len(PARTS)), 100, 10, 5, 6, 5.0)


def make_report(*times, adds=(1000, 500)):
    base = BenchResult(BenchRow(), [make_run(10, 20), make_run(20, 40)], OperationCounts(adds[0], 1))
    pruned = BenchResult(
        BenchRow(get_method("divprune", keep=5)), [make_run(*each) for each in times], OperationCounts(adds[1], 1)
    )
    return BenchReport("a model", "wall", 1, 0, [base, pruned])


def test_ratios_are_taken_within_each_round():
    report = make_report((5, 10), (16, 20))
    assert report.ratio(report.results[1], "prefill").median == pytest.approx((0.5 + 0.8) / 2)
    assert report.ratio(report.results[1], "decode") is None
    assert report.expected_ratio(report.results[1]) == 0.5
    assert report.realized_speedup(report.results[1]) == pytest.approx(0.5 / 0.65)


def test_a_row_that_costs_more_than_it_saves_gets_a_warning():
    assert make_report((5, 10), (10, 20)).warnings == []
    [warning] = make_report((12, 19), (24, 38)).warnings
    assert warning == "divprune 5 costs more than it saves: prefill 1.20 of the unpruned model's time"
    [both] = make_report((12, 22), (24, 44)).warnings
    assert "prefill 1.20 and the whole answer 1.10" in both
