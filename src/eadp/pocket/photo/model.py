"""The model for photographs, assembled from its parts: a stock LLaVA."""

from __future__ import annotations

from typing import Any

from transformers import LlavaForConditionalGeneration, LlavaProcessor

from eadp.compat import CLIPImageProcessorPil
from eadp.models.efficientnet_lite import PIXEL_MEAN, PIXEL_STD, EfficientNetLiteConfig, EfficientNetLiteModel
from eadp.pocket.llava import build_llava
from eadp.pocket.photo.visual_words import write_visual_words
from eadp.pocket.smol import CHAT_TEMPLATE


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
    model = build_llava(
        tower,
        language_model,
        tokenizer,
        count_tokens(tower.config),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        projector_hidden_act="linear",
        multimodal_projector_bias=False,
    )
    write_visual_words(model.model.multi_modal_projector, language_model.get_input_embeddings(), tokenizer)
    return model, build_processor(tower.config, tokenizer)


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
