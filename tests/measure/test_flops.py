"""Multiply-adds, compared exactly with torch's counter, and with the paper's tables."""

import pytest
import torch
from helpers import tiny
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from eadp.architectures import untrained
from eadp.architectures.configs import ARCHITECTURES, build_text_encoder, text_encoder_config
from eadp.measure import flops, paper_recount

FAMILIES = {
    "llava": ([[(28, 28)]], [(4, 4)]),
    "qwen2_5_vl": ([[(40, 64)]], None),
    "qwen3_vl": ([[(40, 64)]], None),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_part_equals_torchs_count(family):
    model = tiny.model(family)
    sizes, grids = FAMILIES[family]
    inputs = tiny.inputs(family, sizes)
    if grids is None:
        merge = model.config.vision_config.spatial_merge_size
        _, rows, columns = inputs["image_grid_thw"][0].tolist()
        grids = [(rows // merge, columns // merge)]
    # torch has no formula for fused attention on the CPU, so it runs the unfused one.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, depth=6) as counter, torch.no_grad():
        model(**inputs, logits_to_keep=1)

    def counted(module):
        prefix = next(name for name, each in model.named_modules() if each is module)
        found = counter.get_flop_counts()[f"{type(model).__name__}.{prefix}"]
        return sum(found.values()) // 2

    base = model.model
    linear, attention, head = flops.count_language_model(model, inputs["input_ids"].shape[1])
    layers = sum(counted(layer) for layer in base.language_model.layers)
    assert linear + attention == layers
    assert head == counted(model.lm_head)
    tower, projector = flops.count_vision(model, grids)
    if family == "llava":
        assert tower == counted(base.vision_tower)
        assert projector == counted(base.multi_modal_projector)
    else:
        mergers = [base.visual.merger, *getattr(base.visual, "deepstack_merger_list", [])]
        assert projector == sum(counted(merger) for merger in mergers)
        assert tower == counted(base.visual.patch_embed) + sum(counted(block) for block in base.visual.blocks)


@pytest.mark.parametrize("name", ["tiny-llava", "llava-onevision-0.5b"])
@pytest.mark.parametrize("words", [9, 100])
def test_the_text_encoder_of_the_guide_equals_torchs_count(name, words):
    config, is_clip = text_encoder_config(untrained.build_config(name, layers=1)), name == "tiny-llava"
    with torch.device("meta"):
        encoder = build_text_encoder(config)
        segments = -(-words // (config.max_position_embeddings - (2 if is_clip else 1)))
        length = words + 2 if is_clip and segments == 1 else config.max_position_embeddings
        ids = torch.zeros(segments, length, dtype=torch.long)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
            encoder(input_ids=ids)
    projected = segments * (length + 1) * 64 * 64 if is_clip else 0
    assert flops.count_text_encoder(config, words) == counter.get_total_flops() // 2 + projected


@pytest.mark.parametrize(("name", "giga"), [("llava-1.5-7b", 6.607), ("qwen2.5-vl-3b", 3.086)])
def test_the_cost_per_token_equals_the_papers(name, giga):
    assert paper_recount.multiply_adds_per_token(name) / 1e9 == pytest.approx(giga, abs=5e-4)


@pytest.mark.parametrize("name", paper_recount.TABLES)
def test_recounted_savings_agree_with_the_papers_rows(name):
    savings = paper_recount.compute_savings(name)
    assert all(abs(saving.deviation) < 0.002 for saving in savings), savings


def test_fewer_tokens_cost_less_but_the_tower_costs_the_same():
    config = ARCHITECTURES["llava-1.5-7b"]()
    whole, few = (flops.count_prefill(config, [(24, 24)], keep, text=40) for keep in (None, 64))
    assert whole.tower == few.tower
    assert few.linear * (576 + 40) == whole.linear * (64 + 40)
    assert whole.guide == whole.pruner == 0
    assert 0 < few.guide + few.pruner < 0.01 * whole.total
    assert few.total < whole.total / 2
