"""EADP itself through `attach`: the question read from the prompt, the guide that fits the model, its own budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import transformers as hf
from by_hand import answers
from PIL import Image

import eadp
from eadp.models.guides import EmbeddingGuide

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
        (kept,), (picture,) = pruned.last, pruned.pictures
        assert "".join(kept.words) == QUESTION
        assert len(kept) == int(0.5 * kept.total + 0.5)
        assert len(kept.quotas) == len(picture.grids)
        assert sum(kept.quotas) == len(kept)
        assert 0 < kept.coverage <= kept.bound
        with pruned.asking(QUESTION):
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
        (kept,), (picture,) = pruned.last, pruned.pictures
        pooled = pruned.guide.encode(QUESTION).pooled
        pixels = inputs["pixel_values"].flatten(0, -4)
        output = model.model.vision_tower(pixels, output_hidden_states=True)
        states = output.hidden_states[-2][:, 1:]
        aligned = picture.arrange(pruned.guide.align(states))
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


def test_published_presets_bring_their_positions() -> None:
    model, processor = tiny.model("qwen2_5_vl"), tiny.processor("qwen2_5_vl")
    inputs = prompt("qwen2_5_vl", [noise(40, 60)])
    method = eadp.EADP.published(8, "qwen2_5_vl", padded_text=False)
    logits = {}
    for positions in (None, "renumber", "keep"):
        with eadp.attach(model, processor, method=method, positions=positions):
            logits[positions] = answers(model, **inputs)[1]
    assert torch.equal(logits[None], logits["renumber"])
    assert not torch.allclose(logits[None], logits["keep"], atol=1e-2)
