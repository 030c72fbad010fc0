"""The model for photographs, assembled from its parts: a stock LLaVA."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from transformers import LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor

from eadp.compat import CLIPImageProcessorPil
from eadp.models.efficientnet_lite import PIXEL_MEAN, PIXEL_STD, EfficientNetLiteConfig, EfficientNetLiteModel
from eadp.pocket.photo.visual_words import write_visual_words
from eadp.pocket.smol import CHAT_TEMPLATE
from eadp.pocket.text import IMAGE


def build_model(
    tower: EfficientNetLiteModel, language_model: Any, tokenizer: Any
) -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    """Assemble a LLaVA whose visual tokens are visual words.

    Args:
        tower: The vision tower. It becomes a part of the model, not a copy.
        language_model: A causal language model with input embeddings, such as SmolLM2 as it is, or after a LoRA was
            merged into it. It becomes a part of the model; its embeddings get a row for the image token.
        tokenizer: Its tokenizer. It gets the image token.

    Returns:
        The model, in evaluation mode, and its processor.
    """
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE]}, replace_extra_special_tokens=False)
    tokenizer.image_token = IMAGE
    image_id = tokenizer.convert_tokens_to_ids(IMAGE)
    _add_embeddings(language_model, len(tokenizer))
    config = LlavaConfig(
        vision_config=tower.config,
        # A copy: LLaVA's configuration changes the one of its language model.
        text_config=deepcopy(language_model.config),
        image_token_index=image_id,
        image_seq_length=count_tokens(tower.config),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        projector_hidden_act="linear",
        multimodal_projector_bias=False,
        tie_word_embeddings=language_model.config.tie_word_embeddings,
    )
    # Where a cell is, the language model reads from its visual word and from its position in the sequence.
    config.eadp_positions = "keep"
    with torch.device("meta"):
        model = LlavaForConditionalGeneration(config)
    model.model.vision_tower = tower
    model.model.language_model = language_model.get_decoder()
    model.lm_head = language_model.get_output_embeddings()
    projector = model.model.multi_modal_projector.to_empty(device="cpu").to(language_model.dtype)
    write_visual_words(projector, language_model.get_input_embeddings(), tokenizer)
    model.generation_config = deepcopy(language_model.generation_config)
    return model.eval(), build_processor(tower.config, tokenizer)


def build_processor(config: EfficientNetLiteConfig, tokenizer: Any) -> LlavaProcessor:
    """Build the processor. Images are scaled to a square, so that no part of a photograph is cut off.

    Args:
        config: The configuration of the tower.
        tokenizer: The tokenizer, with the image token.
    """
    side = config.image_size
    images = CLIPImageProcessorPil(
        size={"height": side, "width": side},
        do_center_crop=False,
        image_mean=[PIXEL_MEAN] * 3,
        image_std=[PIXEL_STD] * 3,
    )
    return LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=config.patch_size,
        vision_feature_select_strategy="full",
        num_additional_image_tokens=0,
        chat_template=CHAT_TEMPLATE,
    )


def count_tokens(config: EfficientNetLiteConfig) -> int:
    """The number of visual tokens of an image."""
    return (config.image_size // config.patch_size) ** 2


@torch.no_grad()
def _add_embeddings(language_model: Any, tokens: int) -> None:
    """Make the embeddings at least this long. A new row is the mean of the others, which no answer is close to."""
    before = len(language_model.get_input_embeddings().weight)
    if tokens > before:
        embeddings = language_model.resize_token_embeddings(tokens, mean_resizing=False).weight
        embeddings[before:] = embeddings[:before].mean(0)
