"""Budgets for a latency or a memory, compared with the counts that they are based on."""

import pytest
import torch

from eadp.architectures.configs import ARCHITECTURES, GRIDS
from eadp.architectures.memory import format_bytes
from eadp.loading import load_guide, load_model
from eadp.measure import flops
from eadp.measure.bench import cache_bytes
from eadp.measure.op_counts import count_operations
from eadp.measure.plan import Planner, parse_bytes, parse_ratio
from eadp.measure.samples import pocket_samples
from eadp.models.prompt import build_inputs
from eadp.runtime import attach
from eadp.utils.images import make_square

LLAVA = ARCHITECTURES["llava-1.5-7b"]()


@pytest.fixture(scope="module")
def planner():
    return Planner(LLAVA, GRIDS["llava"])


@pytest.mark.parametrize("ratio", [0.9, 0.5, 0.3])
def test_keep_for_latency_is_the_largest_that_reaches_it(planner, ratio):
    keep = planner.keep_for_latency(ratio)
    whole, at, above = (
        flops.count_model_prefill(planner.model, GRIDS["llava"], each, text=40).total for each in (None, keep, keep + 1)
    )
    assert at / whole <= ratio < above / whole


@pytest.mark.parametrize("size", ["13.5GiB", "13.65GiB"])
def test_keep_for_memory_is_the_largest_that_fits(planner, size):
    keep = planner.keep_for_memory(parse_bytes(size))
    assert planner.memory(keep).total <= parse_bytes(size) < planner.memory(keep + 1).total


def test_a_goal_that_needs_no_pruning_keeps_all_tokens(planner):
    assert planner.keep_for_latency(1.0) == planner.keep_for_memory(1 << 40) == 576


def test_an_unreachable_goal_is_an_error_with_figures(planner):
    with pytest.raises(ValueError, match=r"no budget reaches 0\.01x: with one token left a prefill still takes 0\.1"):
        planner.keep_for_latency(0.01)
    with pytest.raises(ValueError, match=r"nothing fits into 4\.0 GiB: the weights take 13\.4 GiB"):
        planner.keep_for_memory(4 << 30)


def test_batch_and_context_are_the_largest_that_fit(planner):
    limit = 16 << 30
    for keep in (576, 64):
        batch, context = planner.largest_batch(keep, limit), planner.longest_context(keep, limit)
        assert planner.memory(keep, batch=batch).total <= limit < planner.memory(keep, batch=batch + 1).total
        assert planner.memory(keep, text=context).total <= limit
        assert context == 4096 - 576 or planner.memory(keep, text=context + 1).total > limit
    assert planner.largest_batch(64, limit) > planner.largest_batch(576, limit)
    assert planner.largest_batch(64, 1 << 30) == 0


@pytest.mark.parametrize("keep", [None, 64])
def test_the_footprint_agrees_with_a_real_prefill(keep):
    model, processor = load_model("random:tiny-llava")
    guide = load_guide("random:tiny-llava", model, processor)
    [sample] = pocket_samples(1)
    inputs = build_inputs(processor, [make_square(sample.load_image(), 336)], [sample.question])
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
    guide_modules = [guide.text_model, guide.text_projection, guide.visual_projection]
    assert need.weights == sum(weight.nbytes for each in (model, *guide_modules) for weight in each.parameters())
    assert need.cache == cache_bytes(caches[0])
    assert need.cache + need.activations == pytest.approx(found.peak_bytes, rel=0.2)


@pytest.mark.parametrize(("text", "ratio"), [("0.5x", 0.5), ("1", 1.0), (".25x", 0.25)])
def test_parse_ratio(text, ratio):
    assert parse_ratio(text) == ratio


@pytest.mark.parametrize("text", ["2x", "0x", "half", "-1x"])
def test_parse_ratio_rejects_other_texts(text):
    with pytest.raises(ValueError, match=r"such as 0\.5x"):
        parse_ratio(text)


@pytest.mark.parametrize(("text", "size"), [("4GiB", 4 << 30), ("1.5 GB", 1_500_000_000), ("10B", 10)])
def test_parse_and_format_bytes(text, size):
    assert parse_bytes(text) == size
    assert format_bytes(4 << 30) == "4.0 GiB"
    assert format_bytes(10) == "10 B"


@pytest.mark.parametrize("text", ["4", "GiB", "0GiB", "4 gigs"])
def test_parse_bytes_rejects_other_texts(text):
    with pytest.raises(ValueError, match="such as 4GiB"):
        parse_bytes(text)
