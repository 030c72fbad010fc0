"""Budgets for a latency or a memory, against the counts that they rest on."""

import pytest
import torch

from eadp.architectures.configs import ARCHITECTURES, GRIDS
from eadp.architectures.memory import format_bytes
from eadp.loading import load_guide, load_model
from eadp.measure import flops
from eadp.measure.bench import cache_bytes
from eadp.measure.op_counts import count_operations
from eadp.measure.plan import Planner, bytes_of, ratio_of
from eadp.measure.samples import drawn_samples
from eadp.models.prompt import build_inputs
from eadp.runtime import attach
from eadp.utils.images import make_square

LLAVA = ARCHITECTURES["llava-1.5-7b"]()


@pytest.fixture(scope="module")
def planner():
    return Planner(LLAVA, GRIDS["llava"])


@pytest.mark.parametrize("ratio", [0.9, 0.5, 0.3])
def test_a_latency_is_reached_by_the_most_tokens_that_can(planner, ratio):
    keep = planner.for_latency(ratio)
    whole, at, above = (
        flops.count(planner.model, GRIDS["llava"], each, text=40).total for each in (None, keep, keep + 1)
    )
    assert at / whole <= ratio < above / whole


@pytest.mark.parametrize("size", ["13.5GiB", "13.65GiB"])
def test_a_memory_is_kept_by_the_most_tokens_that_can(planner, size):
    keep = planner.for_memory(bytes_of(size))
    assert planner.memory(keep).total <= bytes_of(size) < planner.memory(keep + 1).total


def test_what_needs_no_pruning_keeps_everything(planner):
    assert planner.for_latency(1.0) == planner.for_memory(1 << 40) == 576


def test_what_cannot_be_reached_is_told_with_figures(planner):
    with pytest.raises(ValueError, match=r"no budget reaches 0\.01x: with one token left a prefill still takes 0\.1"):
        planner.for_latency(0.01)
    with pytest.raises(ValueError, match=r"nothing fits into 4\.0 GiB: the weights take 13\.4 GiB"):
        planner.for_memory(4 << 30)


def test_batch_and_context_fill_the_room_and_no_more(planner):
    room = 16 << 30
    for keep in (576, 64):
        batch, context = planner.batch_within(keep, room), planner.context_within(keep, room)
        assert planner.memory(keep, batch=batch).total <= room < planner.memory(keep, batch=batch + 1).total
        assert planner.memory(keep, text=context).total <= room
        assert context == 4096 - 576 or planner.memory(keep, text=context + 1).total > room
    assert planner.batch_within(64, room) > planner.batch_within(576, room)
    assert planner.batch_within(64, 1 << 30) == 0


@pytest.mark.parametrize("keep", [None, 64])
def test_the_footprint_is_that_of_a_real_prefill(keep):
    model, processor = load_model("random:tiny")
    guide = load_guide("random:tiny", model, processor)
    [asked] = drawn_samples(1)
    inputs = build_inputs(processor, [make_square(asked.load_image(), 336)], [asked.question])
    caches = []
    with torch.inference_mode():
        pruned = attach(model, processor, keep=keep or 576, guide=guide) if keep else None
        found = count_operations(
            lambda: caches.append(model(**inputs, use_cache=True, logits_to_keep=1).past_key_values)
        )
        if pruned is not None:
            pruned.detach()
    planner = Planner(model.config, [(24, 24)], text=inputs["input_ids"].shape[1] - 576, dtype=torch.float32)
    need = planner.memory(keep or 576)
    beside = [guide.text_model, guide.text_projection, guide.visual_projection]
    assert need.weights == sum(weight.nbytes for each in (model, *beside) for weight in each.parameters())
    assert need.cache == cache_bytes(caches[0])
    assert need.cache + need.activations == pytest.approx(found.peak_bytes, rel=0.2)


@pytest.mark.parametrize(("text", "ratio"), [("0.5x", 0.5), ("1", 1.0), (".25x", 0.25)])
def test_ratios_are_read(text, ratio):
    assert ratio_of(text) == ratio


@pytest.mark.parametrize("text", ["2x", "0x", "half", "-1x"])
def test_what_is_no_ratio_is_refused(text):
    with pytest.raises(ValueError, match=r"such as 0\.5x"):
        ratio_of(text)


@pytest.mark.parametrize(("text", "size"), [("4GiB", 4 << 30), ("1.5 GB", 1_500_000_000), ("10B", 10)])
def test_sizes_are_read_and_said(text, size):
    assert bytes_of(text) == size
    assert format_bytes(4 << 30) == "4.0 GiB"
    assert format_bytes(10) == "10 B"


@pytest.mark.parametrize("text", ["4", "GiB", "0GiB", "4 gigs"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="such as 4GiB"):
        bytes_of(text)
