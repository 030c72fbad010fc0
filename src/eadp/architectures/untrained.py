"""The paper's architectures with random weights, for measurements that do not depend on the weights' values.

    model, processor = load("llava-onevision-0.5b")

Nothing is downloaded: the processor is the family's own, and its tokenizer is the pocket model's with the family's
special tokens. The answers of these models are meaningless.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from eadp.architectures.configs import ARCHITECTURES, build_text_encoder, default_grids, text_encoder_config
from eadp.architectures.memory import check_fits, parse_dtype
from eadp.architectures.processors import build_processor

RANDOM = "random:"
"""The prefix that turns the name of an architecture into the name of a model with random weights."""


def load(
    name: str, *, dtype: torch.dtype | str = "auto", device: torch.device | None = None, layers: int | None = None
) -> tuple[Any, Any]:
    """Build an architecture with random weights, always the same ones, and its processor.

    Args:
        name: One of `ARCHITECTURES`.
        dtype: The type of the weights; "auto" for float32 on a CPU and bfloat16 elsewhere.
        device: The device; None for the CPU.
        layers: Number of layers of the language model; the vision tower is shortened in proportion. None for all.

    Returns:
        The model, in evaluation mode, and its processor.

    Raises:
        ValueError: If there is no such architecture, or the model does not fit into memory.
    """
    from transformers import AutoModelForImageTextToText

    config = build_config(name, layers)
    device = device or torch.device("cpu")
    if dtype == "auto":
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    dtype = parse_dtype(dtype)
    check_fits(config, default_grids(config), dtype, device, RANDOM + name)
    processor = build_processor(config)
    torch.manual_seed(0)
    with device:
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype).eval()
    model.generation_config.pad_token_id = processor.tokenizer.pad_token_id
    return model, processor


def build_config(name: str, layers: int | None = None) -> Any:
    """Build the configuration of one of `ARCHITECTURES`, shortened if `layers` is given.

    Raises:
        ValueError: If there is no such architecture, or it does not have that many layers.
    """
    if name not in ARCHITECTURES:
        known = ", ".join(RANDOM + each for each in ARCHITECTURES)
        raise ValueError(f"there is no {RANDOM}{name}; there are {known}")
    config = ARCHITECTURES[name]()
    return config if layers is None else shorten(config, layers)


def shorten(config: Any, layers: int) -> Any:
    """Return a copy of a configuration with fewer layers.

    The vision tower is shortened in proportion, so that the shares of the time stay about the same.

    Args:
        config: The configuration.
        layers: Number of layers of the language model.

    Raises:
        ValueError: If the language model does not have that many layers.
    """
    settings = config.to_dict()
    text, vision = settings["text_config"], settings["vision_config"]
    depth = text["num_hidden_layers"]
    if not 1 <= layers <= depth:
        raise ValueError(f"the language model has {depth} layers: --layers must be from 1 to {depth}, got {layers}")
    text["num_hidden_layers"] = layers
    if text.get("layer_types"):
        text["layer_types"] = text["layer_types"][:layers]
    depth_field = "depth" if "depth" in vision else "num_hidden_layers"
    full = vision[depth_field]
    vision[depth_field] = max(2, round(full * layers / depth))
    for field in ("fullatt_block_indexes", "deepstack_visual_indexes"):
        if field in vision:
            vision[field] = sorted({index * vision[depth_field] // full for index in vision[field]})
    return type(config).from_dict(settings)


def build_guide(model: Any, processor: Any) -> Any:
    """Build the text guide of a random model. Its text encoder has the real size and random weights."""
    from eadp.models.guides import CLIPGuide, EmbeddingGuide, SiglipGuide

    config, tokenizer = text_encoder_config(model.config), processor.tokenizer
    if config is None:
        return EmbeddingGuide(model.get_input_embeddings(), processor)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, name, getattr(tokenizer, name))
    norm: Any = model.model.vision_tower.post_layernorm
    torch.manual_seed(0)
    with norm.weight.device:
        text_model = build_text_encoder(config).to(norm.weight.dtype).eval().requires_grad_(False)
        if config.model_type != "clip_text_model":
            return SiglipGuide(text_model=text_model, post_layernorm=norm, tokenizer=tokenizer)
        text, visual = (
            nn.Linear(width, config.projection_dim, bias=False, dtype=norm.weight.dtype)
            for width in (config.hidden_size, len(norm.weight))
        )
    return CLIPGuide(
        text_model=text_model,
        text_projection=text,
        visual_projection=visual,
        post_layernorm=norm,
        tokenizer=tokenizer,
    )


def image_side(config: Any) -> int:
    """Compute the side in pixels of a square image that has the tokens of `default_grids`, without padding."""
    vision, grids = config.vision_config, default_grids(config)
    if hasattr(vision, "spatial_merge_size"):
        return grids[0][0] * vision.spatial_merge_size * vision.patch_size
    return vision.image_size * max(1, round((len(grids) - 1) ** 0.5))
