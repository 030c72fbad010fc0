"""A model for clips: a stock LLaVA-NeXT-Video made of the parts of a model for scenes."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    LlavaForConditionalGeneration,
    LlavaNextVideoConfig,
    LlavaNextVideoForConditionalGeneration,
    LlavaNextVideoProcessor,
    LlavaProcessor,
)

from eadp.compat import without_video_processor
from eadp.models.frame_processor import FrameProcessor
from eadp.pocket.llava import add_embeddings
from eadp.pocket.text import CHAT_TEMPLATE
from eadp.pocket.things.render import GRID
from eadp.pocket.things.scene import SIDE

VIDEO = "<video>"
POOL = 2
"""Each token of a frame is the mean of POOL×POOL patches, as in LLaVA-NeXT-Video."""

FRAME_GRID = GRID // POOL
"""Tokens along each side of a frame."""

CLIP_CHAT_TEMPLATE = CHAT_TEMPLATE.replace("'image'", "'video'").replace("<image>", VIDEO)

_SAME = (
    "vision_config",
    "image_token_index",
    "vision_feature_layer",
    "vision_feature_select_strategy",
    "projector_hidden_act",
    "multimodal_projector_bias",
    "tie_word_embeddings",
)


def build_clip_model(model: LlavaForConditionalGeneration, tokenizer: Any) -> LlavaNextVideoForConditionalGeneration:
    """Build the model for clips. It takes the modules of `model`, which must not be used any more.

    Args:
        model: A model for the world of things.
        tokenizer: Its tokenizer. It gets the token of a clip.
    """
    tokenizer.add_special_tokens({"additional_special_tokens": [VIDEO]}, replace_extra_special_tokens=False)
    add_embeddings(model, len(tokenizer))
    before = model.config
    config = LlavaNextVideoConfig(
        **{name: getattr(before, name) for name in _SAME},
        text_config=before.text_config,
        video_token_index=tokenizer.convert_tokens_to_ids(VIDEO),
        image_grid_pinpoints=[[SIDE, SIDE]],
        spatial_pool_mode="average",
        spatial_pool_stride=POOL,
    )
    config.eadp_positions = before.eadp_positions
    with torch.device("meta"):
        made = LlavaNextVideoForConditionalGeneration(config)
    for name in ("vision_tower", "multi_modal_projector", "language_model"):
        setattr(made.model, name, getattr(model.model, name))
    embeddings: Any = model.get_input_embeddings()
    made.model.image_newline = torch.nn.Parameter(torch.zeros(embeddings.embedding_dim))
    made.lm_head = model.lm_head
    made.generation_config = model.generation_config
    return made.eval()


def build_clip_processor(processor: LlavaProcessor) -> LlavaNextVideoProcessor:
    """Build the processor of the model for clips, which takes clips and no images.

    Args:
        processor: The processor of the model for scenes, whose tokenizer has the token of a clip.
    """
    made = without_video_processor(LlavaNextVideoProcessor)(
        video_processor=None,
        image_processor=processor.image_processor,
        tokenizer=processor.tokenizer,
        patch_size=processor.patch_size,
        vision_feature_select_strategy=processor.vision_feature_select_strategy,
        num_additional_image_tokens=processor.num_additional_image_tokens,
        chat_template=CLIP_CHAT_TEMPLATE,
    )
    made.video_processor = FrameProcessor(processor.image_processor)
    return made
