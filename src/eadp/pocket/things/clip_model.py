"""A model for clips: a stock LLaVA-NeXT-Video made of the parts of a model for scenes.

The processor of LLaVA-NeXT-Video needs torchvision. `clip_inputs` does without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import (
    LlavaForConditionalGeneration,
    LlavaNextVideoConfig,
    LlavaNextVideoForConditionalGeneration,
    LlavaProcessor,
)

from eadp.models.prompt import build_prompt
from eadp.pocket.llava import add_embeddings
from eadp.pocket.text import IMAGE
from eadp.pocket.things.render import GRID
from eadp.pocket.things.scene import SIDE

VIDEO = "<video>"
POOL = 2
"""Each token of a frame is the mean of POOL×POOL patches, as in LLaVA-NeXT-Video."""

FRAME_GRID = GRID // POOL
"""Tokens along each side of a frame."""

_SAME = (
    "vision_config",
    "image_token_index",
    "vision_feature_layer",
    "vision_feature_select_strategy",
    "projector_hidden_act",
    "multimodal_projector_bias",
    "tie_word_embeddings",
)


def build_clip_model(
    model: LlavaForConditionalGeneration, processor: LlavaProcessor
) -> LlavaNextVideoForConditionalGeneration:
    """Build the model for clips. It takes the modules of `model`, which must not be used any more.

    Args:
        model: A model for the world of things, from `eadp.load_pocket`.
        processor: Its processor. Its tokenizer gets the token of a clip.
    """
    tokenizer = processor.tokenizer
    tokenizer.add_special_tokens({"additional_special_tokens": [VIDEO]}, replace_extra_special_tokens=False)
    add_embeddings(model, len(tokenizer))
    before = model.config
    config = LlavaNextVideoConfig(
        **{name: getattr(before, name) for name in _SAME},
        text_config=model.model.language_model.config,
        video_token_index=tokenizer.convert_tokens_to_ids(VIDEO),
        image_grid_pinpoints=[[SIDE, SIDE]],
        spatial_pool_mode="average",
        spatial_pool_stride=POOL,
    )
    config.eadp_positions = before.eadp_positions
    config.name_or_path = model.name_or_path
    with torch.device("meta"):
        made = LlavaNextVideoForConditionalGeneration(config)
    for name in ("vision_tower", "multi_modal_projector", "language_model"):
        setattr(made.model, name, getattr(model.model, name))
    made.model.image_newline = torch.nn.Parameter(torch.zeros(config.text_config.hidden_size))
    made.lm_head = model.lm_head
    made.generation_config = model.generation_config
    return made.eval()


def clip_inputs(processor: LlavaProcessor, frames: Sequence[Image.Image], question: str) -> dict[str, Tensor]:
    """Build the inputs of the model for clips: one question about one clip."""
    prompt = build_prompt(processor, question)
    tokens: Any = processor.tokenizer(prompt.replace(IMAGE, VIDEO * (len(frames) * FRAME_GRID**2)), return_tensors="pt")
    pixels: Any = processor.image_processor(list(frames), return_tensors="pt")
    return {**tokens, "pixel_values_videos": pixels["pixel_values"][None]}
