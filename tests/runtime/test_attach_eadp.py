"""EADP through `attach`: the question from the prompt, the guide for the model, its own budget."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import tiny
from helpers.manual_pruning import answers
from helpers.prompts import CLIPS
from PIL import Image

import eadp
from eadp.models.guides import EmbeddingGuide
from eadp.models.llava_video import convert

QUESTION = "Where is the red cup?"
CHATTING = tuple(family for family in tiny.FAMILIES if family not in ("llava_next_video", "smolvlm"))


def noise(height: int, width: int) -> Image.Image:
    generator = torch.Generator().manual_seed(height * width)
    return Image.fromarray((torch.rand(height, width, 3, generator=generator) * 255).byte().numpy())


def prompt(family: str, images: list[Image.Image], question: str = QUESTION) -> Any:
    processor = tiny.processor(family)
    if family == "paligemma":
        text = "<image>" * len(images) + question
        inputs = processor(images=images, text=text, return_tensors="pt")
        inputs.pop("labels", None)
        return inputs
    parts = [*({"type": "image"} for _ in images), {"type": "text", "text": question}]
    text = processor.apply_chat_template([{"role": "user", "content": parts}], add_generation_prompt=True)
    return processor(images=images, text=text, return_tensors="pt")


@pytest.mark.parametrize("family", CHATTING)
def test_the_prompts_own_question_guides(family: str) -> None:
    model, processor = tiny.model(family), tiny.processor(family)
    guide = EmbeddingGuide(model.get_input_embeddings(), processor)
    with eadp.attach(model, processor, keep=0.5, guide=guide) as pruned:
        answers(model, **prompt(family, [noise(40, 60)]))
        (kept,), (layout,) = pruned.last, pruned.images
        assert "".join(kept.words) == QUESTION
        assert len(kept) == round(0.5 * kept.total)
        assert len(kept.quotas) == len(layout.grids)
        assert sum(kept.quotas) == len(kept)
        assert 0 < kept.coverage <= kept.bound
        with pruned.with_question(QUESTION):
            answers(model, **prompt(family, [noise(40, 60)], "something else altogether"))
            assert torch.equal(pruned.last[0].indices, kept.indices)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "internvl", "idefics3", "gemma3", "paligemma"])
def test_models_without_a_text_encoder_find_their_guide_themselves(family: str) -> None:
    model, processor = tiny.model(family), tiny.processor(family)
    with eadp.attach(model, processor, keep=4) as pruned:
        model(**prompt(family, [noise(40, 60)]))
    assert isinstance(pruned.guide, EmbeddingGuide)
    assert len(pruned.last[0]) == 4


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the CLIP whose vision tower the tiny LLaVA has."""
    vision = tiny.model("llava").config.vision_config
    text = hf.CLIPTextConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        projection_dim=16,
        vocab_size=tiny.VOCABULARY,
        max_position_embeddings=77,
        bos_token_id=tiny.IDS["<s>"],
        eos_token_id=tiny.IDS["</s>"],
        pad_token_id=tiny.IDS["<pad>"],
    )
    torch.manual_seed(0)
    model = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))
    folder = tmp_path_factory.mktemp("clip")
    model.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", ["llava", "llava_next"])
def test_llava_is_guided_by_the_clip_of_its_tower(family: str, clip: Path) -> None:
    """The map over an AnyRes image is CLIP's own: states of layer −2, its norm, its projection, crop by crop."""
    model, processor = tiny.model(family), tiny.processor(family)
    inputs = prompt(family, [noise(40, 60)])
    with eadp.attach(model, processor, keep=8, guide=str(clip), mu=1.0) as pruned:
        model(**inputs)
        (kept,), (layout,) = pruned.last, pruned.images
        pooled = pruned.guide.encode(QUESTION).pooled
        pixels = inputs["pixel_values"].flatten(0, -4)
        output = model.model.vision_tower(pixels, output_hidden_states=True)
        states = output.hidden_states[-2][:, 1:]
        aligned = layout.arrange(pruned.guide.align(states))
    cosine = torch.nn.functional.cosine_similarity(aligned, pooled, dim=-1)
    torch.testing.assert_close(kept.relevance.global_score, -cosine, rtol=1e-4, atol=1e-5)
    assert len(kept) == 8


def test_bfloat16() -> None:
    model, processor = tiny.model("qwen3_vl"), tiny.processor("qwen3_vl")
    half = hf.Qwen3VLForConditionalGeneration._from_config(model.config, dtype=torch.bfloat16).eval()
    inputs = prompt("qwen3_vl", [noise(40, 60)]).to(torch.bfloat16)
    with eadp.attach(half, processor, keep=8) as pruned:
        assert half(**inputs).logits.isfinite().all()
    assert len(pruned.last[0]) == 8


def test_as_many_tokens_as_a_share_of_the_image_takes() -> None:
    model, processor = tiny.model("qwen2_5_vl"), tiny.processor("qwen2_5_vl")
    inputs = prompt("qwen2_5_vl", [noise(40, 60), noise(24, 24)])
    kept = {}
    for coverage in (0.7, 0.95):
        with eadp.attach(model, processor, coverage=coverage, keep=1000) as pruned:
            model(**inputs)
        assert all(selection.coverage >= coverage for selection in pruned.last)
        kept[coverage] = [len(selection) for selection in pruned.last]
    assert all(few < many for few, many in zip(*kept.values(), strict=True))


@pytest.mark.parametrize("family", [*CLIPS, "llava_video"])
def test_clips_are_covered_over_time(family: str) -> None:
    """One budget per clip, other gains than frame by frame, and at least one token of each frame."""
    base = "llava_onevision" if family == "llava_video" else family
    model, processor = tiny.model(base), tiny.processor("llava_next" if base == "llava_next_video" else base)
    guide = EmbeddingGuide(model.get_input_embeddings(), processor)
    with convert(model) if family == "llava_video" else nullcontext():
        inputs = tiny.inputs(base, CLIPS[base])
        kept = {}
        for time in (0, 2):
            settings = {"time": time, "per_frame": min(time, 1)}
            with eadp.attach(model, processor, keep=6, guide=guide, question=QUESTION, **settings) as pruned:
                answers(model, **inputs)
            clips = [each for each, at in zip(pruned.last, pruned.images, strict=True) if at.is_clip]
            assert all(sum(each.quotas) == len(each) == min(6, each.total) for each in clips)
            kept[time] = clips
    assert all(min(each.quotas) >= 1 for each in kept[2])
    assert len(kept[2]) == 2
    assert not any(torch.equal(alone.gains, over.gains) for alone, over in zip(*kept.values(), strict=True))


FAMILIES = ("llava", "llava_next", "llava_onevision", "qwen2_5_vl", "qwen3_vl")
"""The paper's five models: LLaVA-Video has LLaVA-OneVision's architecture."""


@pytest.fixture(scope="module")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the SigLIP whose vision tower the tiny LLaVA-OneVision has."""
    vision = tiny.model("llava_onevision").config.vision_config
    text = hf.SiglipTextConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=tiny.VOCABULARY,
        max_position_embeddings=64,
        pad_token_id=tiny.IDS["<pad>"],
        bos_token_id=tiny.IDS["<s>"],
        eos_token_id=tiny.IDS["</s>"],
    )
    torch.manual_seed(0)
    model = hf.SiglipModel(hf.SiglipConfig(text_config=text.to_dict(), vision_config=vision.to_dict()))
    folder = tmp_path_factory.mktemp("siglip")
    model.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("preset", ["paper", "published"])
@pytest.mark.parametrize("family", FAMILIES)
def test_presets_run_on_the_papers_models(family: str, preset: str, clip: Path, siglip: Path) -> None:
    model, processor = tiny.model(family), tiny.processor(family)
    inputs = prompt(family, [noise(40, 60)])
    guide = {"llava": str(clip), "llava_next": str(clip), "llava_onevision": str(siglip)}.get(family)
    with eadp.attach(model, processor, preset=preset, keep=8, guide=guide) as pruned:
        _, cached = answers(model, **inputs, max_new_tokens=3)
        _, uncached = answers(model, **inputs, max_new_tokens=3, use_cache=False)
        (kept,) = pruned.last
    torch.testing.assert_close(cached, uncached, rtol=1e-4, atol=1e-4)
    assert 1 <= len(kept) <= 8 + len(kept.quotas)
    assert kept.tokens_sent == len(kept)
    words, relevance = len(kept.words), kept.relevance
    if preset == "published":
        slots = {"llava": 77, "llava_next": 77, "llava_onevision": 64}
        assert words == slots.get(family, len(QUESTION))
        share = 0.5 if family == "llava_onevision" else 0.2
        assert relevance.kept.sum(0).tolist() == [int(share * words)] * relevance.kept.shape[1]
    else:
        assert "".join(kept.words) == QUESTION


def test_the_release_renumbers_positions_and_drops_deepstack() -> None:
    model, processor = tiny.model("qwen3_vl"), tiny.processor("qwen3_vl")
    inputs = prompt("qwen3_vl", [noise(40, 60)])
    logits = {}
    for name, options in {
        "preset": {},
        "renumbered": {"positions": "renumber"},
        "in place": {"positions": "keep"},
        "deepstack": {"deepstack": True},
    }.items():
        with eadp.attach(model, processor, preset="published", keep=8, **options):
            logits[name] = answers(model, **inputs)[1]
    assert torch.equal(logits["preset"], logits["renumbered"])
    for name in ("in place", "deepstack"):
        assert not torch.allclose(logits["preset"], logits[name], atol=1e-3)


def test_a_model_may_ask_for_its_positions_to_be_kept() -> None:
    model, processor = tiny.model("qwen2_5_vl"), tiny.processor("qwen2_5_vl")
    inputs = prompt("qwen2_5_vl", [noise(40, 60)])

    def answered(**options: Any) -> torch.Tensor:
        with eadp.attach(model, processor, keep=8, **options):
            return answers(model, **inputs)[1]

    renumbered, kept = answered(), answered(positions="keep")
    assert not torch.allclose(renumbered, kept, atol=1e-3)
    config = model.base_model.config
    config.eadp_positions = "keep"
    try:
        assert torch.equal(answered(), kept)
        assert torch.equal(answered(positions="renumber"), renumbered)
    finally:
        del config.eadp_positions


def test_every_crop_has_all_its_tokens_without_unpadding(clip: Path) -> None:
    """The paper's counts: five crops, K patches of each on average, no newlines."""
    model, processor = tiny.model("llava_next"), tiny.processor("llava_next")
    wide = noise(30, 56)
    before = prompt("llava_next", [wide])["input_ids"]
    with eadp.attach(model, processor, method="cdpruner", keep=10, guide=str(clip), unpad=False) as pruned:
        inputs = prompt("llava_next", [wide])
        model(**inputs)
        (kept,), (layout,) = pruned.last, pruned.images
    assert inputs["input_ids"].shape[1] > before.shape[1]
    assert len(set(layout.grids)) == 1
    assert kept.quotas == (10 // len(layout.grids),) * len(layout.grids)
    assert kept.tokens_sent == 10
    assert torch.equal(prompt("llava_next", [wide])["input_ids"], before)
    with pytest.raises(ValueError, match="unpad=False"):
        eadp.attach(tiny.model("llava"), tiny.processor("llava"), method="uniform", keep=4, unpad=False)
    with pytest.raises(ValueError, match="give attach the processor"):
        eadp.attach(model, method="uniform", keep=4, unpad=False)


def test_divprune_lets_newlines_compete() -> None:
    model, inputs = tiny.model("llava_next"), tiny.inputs("llava_next", [[(56, 56)]])
    newlines = {}
    for which in (None, "none", "all"):
        with eadp.attach(model, method="divprune", keep=24, newlines=which) as pruned:
            model(**inputs)
        (kept,) = pruned.last
        newlines[which] = kept.newlines
        assert kept.tokens_sent == {None: 24, "none": 24, "all": 24 + pruned.images[0].newline_slots.numel()}[which]
    assert newlines[None] == 1
