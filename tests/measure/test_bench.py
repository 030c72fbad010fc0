"""The bench on a tiny model with random weights: what each row reports, and that nothing is left behind."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from eadp.architectures import untrained
from eadp.core import Selection
from eadp.loading import load_guide, load_model
from eadp.measure import flops
from eadp.measure.bench import BenchReport, BenchRow, BenchRun, Measured, bench, cache_bytes
from eadp.measure.op_counts import OperationCounts
from eadp.measure.samples import drawn_samples
from eadp.measure.stopwatch import PARTS, PRUNER, clock
from eadp.methods import BeforeMethod, get_method
from eadp.models import adapter_of
from eadp.models.prompt import build_inputs
from eadp.utils.images import make_square

TINY, TOKENS = "random:tiny", 576


@pytest.fixture(scope="module")
def loaded():
    model, processor = load_model(TINY)
    side = untrained.image_side(model.config)
    inputs = [
        build_inputs(processor, [make_square(each.load_image(), side)], [each.question]) for each in drawn_samples(3)
    ]
    return model, processor, load_guide(TINY, model, processor), inputs


@pytest.fixture(scope="module")
def report(loaded):
    model, processor, guide, inputs = loaded
    methods = [get_method(name, keep=64) for name in ("eadp", "cdpruner", "divprune", "fastv", "visionzip")]
    return bench(TINY, model, processor, methods, inputs, clock=clock("cpu", model.device), guide=guide, new_tokens=3)


def row(report, name):
    return next(each for each in report.rows if each.row.name == name)


def test_the_unpruned_model_comes_first_and_is_its_own_measure(report):
    assert [str(each.row) for each in report.rows[:2]] == ["all tokens", "eadp 64"]
    assert report.ratio(report.base, "prefill").median == report.expected(report.base) == 1
    assert all(len(each.runs) == 2 for each in report.rows)  # Three samples, one of them for warming up.


def test_parts_add_up_to_the_prefill(report):
    for each in report.rows:
        for run in each.runs:
            assert set(run.parts) == set(PARTS)
            assert sum(run.parts.values()) == pytest.approx(run.prefill, rel=1e-9)
            assert 0 < run.prefill < run.first_token < run.latency
            assert run.latency == pytest.approx(run.first_token + 2 * run.decode)


def test_the_same_region_is_timed_for_every_row(report):
    for each in report.rows:
        assert all(run.parts["vision tower"] > 0 and run.parts["language model"] > 0 for run in each.runs)


def parts_of(report, name):
    return {part for part in PRUNER if row(report, name).runs[0].parts[part] > 0}


def test_each_method_has_the_parts_that_it_runs(report):
    assert parts_of(report, "all tokens") == set()
    assert parts_of(report, "eadp") == set(PRUNER)
    assert parts_of(report, "cdpruner") == set(PRUNER) - {"smoothing"}
    assert parts_of(report, "divprune") == {"similarity", "selection", "compaction"}
    assert parts_of(report, "fastv") == {"selection", "compaction"}
    assert parts_of(report, "visionzip") == {"relevance", "selection", "compaction"}


def test_cache_bytes_by_hand(report, loaded):
    # Four layers, keys and values, two heads of 16 numbers of four bytes.
    a_token = 4 * 2 * 2 * 16 * 4
    lengths = [inputs["input_ids"].shape[1] for inputs in loaded[3][1:]]
    assert [run.cache_bytes for run in report.base.runs] == [length * a_token for length in lengths]
    shorter = [(length - TOKENS + 64) * a_token for length in lengths]
    assert [run.cache_bytes for run in row(report, "eadp").runs] == shorter
    run = row(report, "fastv").runs[0]
    assert run.cache_bytes == (lengths[0] - TOKENS + run.layer_mean) * a_token


def test_cache_bytes_are_those_of_its_tensors(loaded):
    model, *_, inputs = loaded
    cache = model(**inputs[0], use_cache=True).past_key_values
    assert cache_bytes(cache) == sum(2 * layer.keys.nbytes for layer in cache.layers)


def test_tokens_after_the_cuts_and_over_the_layers(report):
    assert (report.base.runs[0].after, report.base.runs[0].layer_mean) == (TOKENS, TOKENS)
    assert (row(report, "eadp").runs[0].after, row(report, "eadp").runs[0].layer_mean) == (64, 64)
    assert (report.base.runs[0].sent, row(report, "eadp").runs[0].sent) == (TOKENS, 64)
    fastv = row(report, "fastv").runs[0]
    assert (fastv.visual, fastv.after) == (TOKENS, 64)
    assert fastv.layer_mean == (TOKENS + 3 * 64) / 4


def test_what_is_counted_is_what_the_configuration_says(report, loaded):
    model, *_, inputs = loaded
    text = inputs[0]["input_ids"].shape[1] - TOKENS
    assert report.base.operations.multiply_adds == flops.prefill(model.config, [(24, 24)], None, text).total
    # Words are counted in the language model's tokens here, and those of stage one cost next to nothing.
    expected = flops.prefill(model.config, [(24, 24)], 64, text, words=8).total
    assert row(report, "eadp").operations.multiply_adds == pytest.approx(expected, rel=1e-3)


def test_the_model_is_given_back(report, loaded):
    model = loaded[0]
    adapter = adapter_of(model)
    assert not [name for name in ("forward", "get_image_features") if name in vars(adapter.base)]
    assert "forward" not in vars(adapter.text_model)
    hooks = [each for module in model.modules() for each in (module._forward_hooks, module._forward_pre_hooks)]
    assert not [hook for each in hooks for hook in each.values() if hook.__module__.startswith("eadp")]


@dataclass(frozen=True)
class Noted(BeforeMethod):
    """Keeps the first tokens and notes that it was asked."""

    name: ClassVar[str] = ""
    mark: str = ""
    seen: list = field(default_factory=list)

    def select(self, tokens, text=None):
        self.seen.append(self.mark)
        return Selection(torch.arange(8), len(tokens), self.mark)


def test_rows_take_turns_forth_and_back(loaded):
    model, processor, _, inputs = loaded
    seen: list[str] = []
    methods = [Noted(mark=mark, seen=seen, keep=8) for mark in "ab"]
    bench(TINY, model, processor, methods, inputs, clock=clock("cpu", model.device), new_tokens=1, warmup=0)
    assert "".join(seen) == "ab" + "ab" + "ba" + "ab"  # Counted once, then three rounds.


def test_a_question_is_read_anew_by_every_row(loaded, monkeypatch):
    model, processor, guide, inputs = loaded
    read = []
    encode = guide._encode
    monkeypatch.setattr(guide, "_encode", lambda question, layout: read.append(question) or encode(question, layout))
    methods = [get_method("eadp", keep=keep) for keep in (64, 32)]
    same = [inputs[0]] * 2
    bench(TINY, model, processor, methods, same, clock=clock("cpu", model.device), guide=guide, new_tokens=1)
    assert len(read) == 2 + 2 * 2  # Each row is counted once, and then runs twice.


def test_only_samples_for_warming_up_are_nothing_to_measure(loaded):
    model, processor, _, inputs = loaded
    with pytest.raises(ValueError, match="nothing to measure"):
        bench(TINY, model, processor, [], inputs[:1], clock=clock("cpu", model.device), new_tokens=1)


def run(prefill, latency):
    return BenchRun(prefill, prefill, None, latency, dict.fromkeys(PARTS, prefill / len(PARTS)), 100, 10, 5, 6, 5.0)


def reported(*times, adds=(1000, 500)):
    base = Measured(BenchRow(), [run(10, 20), run(20, 40)], OperationCounts(adds[0], 1))
    pruned = Measured(
        BenchRow(get_method("divprune", keep=5)), [run(*each) for each in times], OperationCounts(adds[1], 1)
    )
    return BenchReport("a model", "wall", 1, 0, [base, pruned])


def test_ratios_are_taken_round_by_round():
    report = reported((5, 10), (16, 20))
    assert report.ratio(report.rows[1], "prefill").median == pytest.approx((0.5 + 0.8) / 2)
    assert report.ratio(report.rows[1], "decode") is None
    assert report.expected(report.rows[1]) == 0.5
    assert report.reached(report.rows[1]) == pytest.approx(0.5 / 0.65)


def test_what_costs_more_than_it_saves_is_warned_of():
    assert reported((5, 10), (10, 20)).warnings == []
    [warning] = reported((12, 19), (24, 38)).warnings
    assert warning == "divprune 5 costs more than it saves: prefill 1.20 of the unpruned model's time"
    [both] = reported((12, 22), (24, 44)).warnings
    assert "prefill 1.20 and the whole answer 1.10" in both
