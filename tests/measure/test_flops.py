"""Multiply-adds against torch's own counter, to the digit, and against the paper's tables."""

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
def test_every_part_agrees_with_torchs_counter(family):
    model = tiny.model(family)
    sizes, grids = FAMILIES[family]
    inputs = tiny.inputs(family, sizes)
    if grids is None:
        merge = model.config.vision_config.spatial_merge_size
        _, rows, columns = inputs["image_grid_thw"][0].tolist()
        grids = [(rows // merge, columns // merge)]
    # torch counts the products of this attention, and has no formula for its fused one on the CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, depth=6) as counter, torch.no_grad():
        model(**inputs, logits_to_keep=1)

    def counted(module):
        prefix = next(name for name, each in model.named_modules() if each is module)
        found = counter.get_flop_counts()[f"{type(model).__name__}.{prefix}"]
        return sum(found.values()) // 2

    base = model.model
    linear, attention, head = flops.language_model(model, inputs["input_ids"].shape[1])
    layers = sum(counted(layer) for layer in base.language_model.layers)
    assert linear + attention == layers
    assert head == counted(model.lm_head)
    tower, projector = flops.vision(model, grids)
    if family == "llava":
        assert tower == counted(base.vision_tower)
        assert projector == counted(base.multi_modal_projector)
    else:
        mergers = [base.visual.merger, *getattr(base.visual, "deepstack_merger_list", [])]
        assert projector == sum(counted(merger) for merger in mergers)
        assert tower == counted(base.visual.patch_embed) + sum(counted(block) for block in base.visual.blocks)


@pytest.mark.parametrize("name", ["tiny", "llava-onevision-0.5b"])
@pytest.mark.parametrize("words", [9, 100])
def test_the_guides_text_encoder_agrees_with_torchs_counter(name, words):
    side = text_encoder_config(untrained.config_for(name, layers=1))
    with torch.device("meta"):
        encoder = build_text_encoder(side)
        segments = -(-words // (side.max_position_embeddings - (2 if name == "tiny" else 1)))
        ids = torch.zeros(segments, side.max_position_embeddings, dtype=torch.long)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
            encoder(input_ids=ids)
    projected = segments * (side.max_position_embeddings + 1) * 64 * 64 if name == "tiny" else 0
    assert flops.text_encoder(side, words) == counter.get_total_flops() // 2 + projected


@pytest.mark.parametrize(("name", "giga"), [("llava-1.5-7b", 6.607), ("qwen2.5-vl-3b", 3.086)])
def test_one_token_costs_what_the_paper_counts(name, giga):
    assert paper_recount.per_token(name) / 1e9 == pytest.approx(giga, abs=5e-4)


@pytest.mark.parametrize("name", paper_recount.TABLES)
def test_the_papers_rows_differ_by_their_tokens(name):
    assert all(abs(step.off) < 0.002 for step in paper_recount.steps(name)), paper_recount.steps(name)


def test_keeping_fewer_tokens_costs_less_and_the_tower_the_same():
    config = ARCHITECTURES["llava-1.5-7b"]()
    whole, few = (flops.prefill(config, [(24, 24)], keep, text=40) for keep in (None, 64))
    assert whole.tower == few.tower
    assert few.linear * (576 + 40) == whole.linear * (64 + 40)
    assert whole.guide == whole.pruner == 0
    assert 0 < few.guide + few.pruner < 0.01 * whole.total
    assert few.total < whole.total / 2
