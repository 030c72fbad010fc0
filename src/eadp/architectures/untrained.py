"""The paper's architectures with random weights: time does not depend on what the weights are.

    model, processor = load("llava-onevision-0.5b")

The processor is the family's own; its tokenizer is the pocket model's with the family's special tokens, so nothing has
to be downloaded. Answers mean nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from eadp.architectures.configs import ARCHITECTURES, build_text_encoder, grids_of, text_encoder_config
from eadp.architectures.memory import check_fits, parse_dtype
from eadp.architectures.processors import processor_for

RANDOM = "random:"
"""Before the name of an architecture: that architecture with random weights."""


def load(
    name: str, *, dtype: torch.dtype | str = "auto", device: torch.device | None = None, layers: int | None = None
) -> tuple[Any, Any]:
    """Model and processor. layers: of the language model; the vision tower is shortened in proportion."""
    from transformers import AutoModelForImageTextToText

    config = config_for(name, layers)
    device = device or torch.device("cpu")
    if dtype == "auto":
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    kind = parse_dtype(dtype)
    check_fits(config, grids_of(config), kind, device, RANDOM + name)
    processor = processor_for(config)
    torch.manual_seed(0)
    with device:
        model = AutoModelForImageTextToText.from_config(config, dtype=kind).eval()
    model.generation_config.pad_token_id = processor.tokenizer.pad_token_id
    return model, processor


def config_for(name: str, layers: int | None = None) -> Any:
    if name not in ARCHITECTURES:
        known = ", ".join(RANDOM + each for each in ARCHITECTURES)
        raise ValueError(f"there is no {RANDOM}{name}; there are {known}")
    config = ARCHITECTURES[name]()
    return config if layers is None else shortened(config, layers)


def shortened(config: Any, layers: int) -> Any:
    """The same with fewer layers, tower and language model in proportion, so that their shares of the time stay."""
    settings = config.to_dict()
    text, vision = settings["text_config"], settings["vision_config"]
    depth = text["num_hidden_layers"]
    if not 1 <= layers <= depth:
        raise ValueError(f"the language model has {depth} layers: --layers must be from 1 to {depth}, got {layers}")
    text["num_hidden_layers"] = layers
    if text.get("layer_types"):
        text["layer_types"] = text["layer_types"][:layers]
    named = "depth" if "depth" in vision else "num_hidden_layers"
    full = vision[named]
    vision[named] = max(2, round(full * layers / depth))
    for places in ("fullatt_block_indexes", "deepstack_visual_indexes"):
        if places in vision:
            vision[places] = sorted({place * vision[named] // full for place in vision[places]})
    return type(config).from_dict(settings)


def build_guide(model: Any, processor: Any) -> Any:
    """The guide of the family, its text encoder of the right size and random too."""
    from eadp.models.guides import CLIPGuide, EmbeddingGuide, SiglipGuide

    side, tokenizer = text_encoder_config(model.config), processor.tokenizer
    if side is None:
        return EmbeddingGuide(model.get_input_embeddings(), processor)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(side, name, getattr(tokenizer, name))
    norm: Any = model.model.vision_tower.post_layernorm
    torch.manual_seed(0)
    with norm.weight.device:
        text_model = build_text_encoder(side).to(norm.weight.dtype).eval().requires_grad_(False)
        if side.model_type != "clip_text_model":
            return SiglipGuide(text_model=text_model, post_layernorm=norm, tokenizer=tokenizer)
        text, visual = (
            nn.Linear(width, side.projection_dim, bias=False, dtype=norm.weight.dtype)
            for width in (side.hidden_size, len(norm.weight))
        )
    return CLIPGuide(
        text_model=text_model,
        text_projection=text,
        visual_projection=visual,
        post_layernorm=norm,
        tokenizer=tokenizer,
    )


def image_side(config: Any) -> int:
    """Pixels along each side of a picture that has the tokens of `grids_of`: whole crops, no padding."""
    vision, grids = config.vision_config, grids_of(config)
    if hasattr(vision, "spatial_merge_size"):
        return grids[0][0] * vision.spatial_merge_size * vision.patch_size
    return vision.image_size * max(1, round((len(grids) - 1) ** 0.5))
