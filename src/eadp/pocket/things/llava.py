"""The models for the world of things: plain LLaVAs, with the same tower and different language models."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from transformers import LlamaForCausalLM, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor

from eadp.compat import CLIPImageProcessorPil
from eadp.pocket.model import make_last_layer_identity
from eadp.pocket.text import IMAGE
from eadp.pocket.things.model import tower_config
from eadp.pocket.things.render import GRID, PATCH
from eadp.pocket.things.scene import SIDE


def build_llava(language_model: LlamaForCausalLM, tokenizer: Any) -> LlavaForConditionalGeneration:
    """Build a LLaVA around a language model, with an untrained tower and projector.

    Args:
        language_model: The language model. Its weights are copied.
        tokenizer: Its tokenizer, with a token for images.
    """
    image_token = tokenizer.convert_tokens_to_ids(IMAGE)
    # A copy: LLaVA's configuration changes the one of its language model.
    text = deepcopy(language_model.config)
    text.vocab_size = max(text.vocab_size, image_token + 1)
    config = LlavaConfig(
        vision_config=tower_config(),
        text_config=text,
        image_token_index=image_token,
        image_seq_length=GRID * GRID,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        tie_word_embeddings=True,
    )
    # The models were trained with original positions: they infer where a patch is from its position in the sequence.
    config.eadp_positions = "keep"
    model = LlavaForConditionalGeneration(config)
    make_last_layer_identity(model.model.vision_tower)
    weights = dict(language_model.model.state_dict())
    embeddings = model.model.language_model.state_dict()["embed_tokens.weight"].clone()
    embeddings[: len(weights["embed_tokens.weight"])] = weights["embed_tokens.weight"]
    model.model.language_model.load_state_dict({**weights, "embed_tokens.weight": embeddings})
    return model.eval()


def build_processor(tokenizer: Any, chat_template: str) -> LlavaProcessor:
    """Build the processor of a model for the world of things."""
    return LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}),
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat_template,
    )
