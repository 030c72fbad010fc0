"""Architectures with random weights: real sizes, real placeholders, and no allocation of a model that does not fit."""

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from eadp.architectures import memory, untrained
from eadp.architectures.configs import ARCHITECTURES, build_meta_model, text_encoder_config
from eadp.architectures.processors import build_processor
from eadp.loading import load_guide, load_model
from eadp.measure.samples import pocket_samples
from eadp.models.prompt import build_clip_inputs, build_inputs
from eadp.runtime import attach
from eadp.utils.images import make_square

TOKENS = {
    "llava-1.5-7b": 576,
    "llava-next-7b": 5 * 576 + 48,  # a newline ends each of 48 rows
    "llava-onevision-0.5b": 5 * 729 + 54,
    "qwen2.5-vl-3b": 1296,
    "qwen3-vl-8b": 1024,
    "tiny-llava": 576,
    "tiny-llava-next": 5 * 576 + 48,
    "tiny-llava-onevision": 5 * 729 + 54,
    "tiny-qwen3-vl": 1024,
}


@pytest.mark.parametrize("name", TOKENS)
def test_an_image_has_as_many_tokens_as_in_the_paper(name):
    config = ARCHITECTURES[name]()
    processor = build_processor(config)
    [sample] = pocket_samples(1)
    image = make_square(sample.load_image(), untrained.image_side(config))
    ids = build_inputs(processor, [image], [sample.question])["input_ids"]
    assert int((ids == config.image_token_id).sum()) == TOKENS[name]
    assert int(ids.max()) < config.text_config.vocab_size


def test_tiny_has_a_guide_of_its_own_width():
    model, processor = load_model("random:tiny-llava")
    guide = load_guide("random:tiny-llava", model, processor)
    assert (model.dtype, guide.encode("What is it?").tokens.shape[1]) == (torch.float32, 64)
    assert load_model("random:tiny-llava", dtype="bfloat16", layers=2)[0].dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["tiny-llava-next", "tiny-llava-onevision", "tiny-qwen3-vl"])
def test_an_untrained_tiny_model_is_pruned_with_its_own_guide(name):
    model, processor = load_model(f"random:{name}")
    guide = load_guide(f"random:{name}", model, processor)
    [sample] = pocket_samples(1)
    inputs = build_inputs(processor, [sample.load_image()], [sample.question])
    with attach(model, processor, keep=8, guide=guide) as pruned:
        model.generate(**inputs, max_new_tokens=2, do_sample=False)
    assert len(pruned.last[0]) == 8


def test_an_untrained_onevision_model_takes_clips():
    model, processor = load_model("random:tiny-llava-onevision")
    frames = [Image.new("RGB", (60, 40), (40 * number, 0, 0)) for number in range(3)]
    inputs = build_clip_inputs(model, processor, frames, "What happens?")
    assert inputs["pixel_values_videos"].shape == (1, 3, 3, 384, 384)
    with attach(model, processor, keep=6, guide=load_guide("random:tiny-llava-onevision", model, processor)) as pruned:
        model.generate(**inputs, max_new_tokens=2, do_sample=False)
    assert pruned.last[0].total == 3 * 14 * 14


@pytest.mark.parametrize("name", ["llava-onevision-0.5b", "qwen2.5-vl-3b", "qwen3-vl-8b"])
def test_a_shortened_model_keeps_its_proportions(name):
    full, short = ARCHITECTURES[name](), untrained.build_config(name, 6)
    depth = "depth" if hasattr(full.vision_config, "depth") else "num_hidden_layers"
    share = 6 / full.text_config.num_hidden_layers
    assert short.text_config.num_hidden_layers == 6
    assert getattr(short.vision_config, depth) == round(share * getattr(full.vision_config, depth))
    model = build_meta_model(short)
    assert len(model.model.language_model.layers) == 6
    for field in ("fullatt_block_indexes", "deepstack_visual_indexes"):
        assert all(index < short.vision_config.depth for index in getattr(short.vision_config, field, []))
    if encoder := text_encoder_config(short):
        assert encoder.num_hidden_layers == pytest.approx(share * text_encoder_config(full).num_hidden_layers, abs=1)


def test_a_model_that_does_not_fit_is_an_error_before_it_is_allocated(monkeypatch):
    devices = []
    original = AutoModelForImageTextToText.from_config
    monkeypatch.setattr(
        AutoModelForImageTextToText,
        "from_config",
        lambda *args, **kwargs: devices.append(torch.get_default_device().type) or original(*args, **kwargs),
    )
    monkeypatch.setattr(memory, "available_memory", lambda device: 20 << 30)
    with pytest.raises(ValueError, match=r"its weights take 50\.2 GiB and a prefill .* cpu has 20\.0 GiB left"):
        load_model("random:llava-1.5-13b", dtype="float32", device="cpu")
    assert devices == ["meta"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("random:llava-9", {}, "there are random:llava-1.5-7b"),
        ("random:tiny-llava", {"layers": 9}, "from 1 to 4"),
        ("random:tiny-llava", {"dtype": "int8"}, "known: float32"),
        ("pocket", {"layers": 2}, "only a random:"),
        ("pocket", {"device": "toaster"}, "give cpu, cuda"),
    ],
)
def test_errors_say_what_would_be_right(name, options, message):
    with pytest.raises(ValueError, match=message):
        load_model(name, **options)


def test_available_memory_is_plausible():
    assert 0 < memory.available_memory(torch.device("cpu")) < 1 << 50
