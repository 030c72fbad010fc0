"""The models for the world of things: plain LLaVAs, with the same tower and different language models."""

from __future__ import annotations

from typing import Any

from transformers import LlamaForCausalLM, LlavaForConditionalGeneration, LlavaProcessor

from eadp.compat import CLIPImageProcessorPil
from eadp.pocket import llava
from eadp.pocket.things.model import build_tower
from eadp.pocket.things.render import GRID, PATCH
from eadp.pocket.things.scene import SIDE


def build_llava(language_model: LlamaForCausalLM, tokenizer: Any) -> LlavaForConditionalGeneration:
    """Build a LLaVA around a language model, with an untrained tower and projector.

    Args:
        language_model: The language model. It becomes a part of the model, and gets an embedding of the image token.
        tokenizer: Its tokenizer. It gets the image token.
    """
    return llava.build_llava(
        build_tower(),
        language_model,
        tokenizer,
        GRID * GRID,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
    )


def build_processor(tokenizer: Any, chat_template: str) -> LlavaProcessor:
    """Build the processor of a model for the world of things.

    Args:
        tokenizer: The tokenizer of the language model, with the image token.
        chat_template: Its chat template.
    """
    return LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}),
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat_template,
    )
