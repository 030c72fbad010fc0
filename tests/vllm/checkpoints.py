"""Checkpoints that both engines load: a tiny random one per family, and the pocket model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from helpers import tiny, tiny_processors
from safetensors.torch import save_file

from eadp.pocket.storage import WEIGHTS
from eadp.serve import ARCHITECTURES

# vLLM's attention on CPUs needs heads of at least 32 channels.
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
FAMILIES = tuple(ARCHITECTURES)
LLAVA_VIDEO = "llava_video"
SIGLIP = "siglip"
"""The folder of the text encoder inside the folder of a LLaVA-OneVision."""


def folder_of(name: str, place: Path) -> Path:
    """Return the folder of a checkpoint, and create it in `place` unless it is the pocket model's.

    Args:
        name: "pocket", "llava_video" or a family.
        place: Where to create the checkpoint.
    """
    if name == "pocket":
        return WEIGHTS
    return _create("llava_onevision" if name == LLAVA_VIDEO else name, place / name)


def settings_of(name: str, folder: Path) -> dict[str, Any]:
    """Return the settings that a server of this checkpoint needs, besides those of the method."""
    if name not in (LLAVA_VIDEO, "llava_onevision"):
        return {}
    return {"guide": str(folder / SIGLIP), **({"llava_video": True} if name == LLAVA_VIDEO else {})}


def _create(family: str, folder: Path) -> Path:
    kind, settings = tiny.CONFIGS[family]
    text = {**settings["text_config"], **HEADS}
    if "rope_parameters" in text:
        # Qwen3 always interleaves its axes. transformers does so by default, but vLLM reads it from the configuration.
        interleaved = {"mrope_interleaved": True} if family == "qwen3_vl" else {}
        text["rope_parameters"] = {**text["rope_parameters"], "mrope_section": [4, 6, 6], **interleaved}
    tiny.build(kind(**{**settings, "text_config": text})).save_pretrained(folder)
    _processor(family).save_pretrained(folder)
    if family == "llava_onevision":
        _siglip(folder / SIGLIP)
    elif family.startswith("llava"):
        _text_side(folder, tiny.CLIP["hidden_size"])
    return folder


def _processor(family: str) -> Any:
    if family not in tiny_processors.VIDEO:
        return tiny_processors.processor(family)
    processor = tiny_processors.clip_processor(family)
    # vLLM normalizes the pixels of images and clips with the same values, as real checkpoints have them.
    for name in ("image_mean", "image_std"):
        setattr(processor.video_processor, name, getattr(processor.image_processor, name))
    return processor


def _siglip(folder: Path) -> None:
    """Save a SigLIP with random weights and its tokenizer, which `eadp.models.guides` loads from this folder."""
    tower = tiny.CONFIGS["llava_onevision"][1]["vision_config"]
    tokens = {name: tiny.TEXT[name] for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")}
    text = dict(tiny.TOWER, max_position_embeddings=64, **tokens)
    model = hf.SiglipModel(hf.SiglipConfig(text_config=text, vision_config=tower))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.text_model.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape, generator=generator) * weight.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)


def _text_side(folder: Path, width: int) -> None:
    """Save a CLIP text encoder with random weights, which `eadp.models.guides` finds in the folder of the model."""
    config = hf.CLIPTextConfig(
        vocab_size=tiny.VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=77,
        bos_token_id=tiny.IDS["<s>"],
        eos_token_id=tiny.IDS["</s>"],
        pad_token_id=tiny.IDS["<pad>"],
    )
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * shape[-1] ** -0.5

    text_model = hf.CLIPTextModel(config)
    weights = {
        f"text_model.{name}": random(*weight.shape) if weight.ndim > 1 else weight
        for name, weight in text_model.state_dict().items()
        if weight.is_floating_point()
    }
    weights |= {"text_projection.weight": random(16, 32), "visual_projection.weight": random(16, width)}
    save_file(weights, folder / "clip_text.safetensors")
    (folder / "clip_text.json").write_text(json.dumps(config.to_diff_dict()))
