"""Puts a vision tower in front of a language model: a stock LLaVA."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from transformers import LlavaConfig, LlavaForConditionalGeneration, PreTrainedModel

from eadp.pocket.text import IMAGE


def build_llava(
    tower: PreTrainedModel, language_model: Any, tokenizer: Any, tokens: int, **settings: Any
) -> LlavaForConditionalGeneration:
    """Build a LLaVA from a vision tower and a language model. Its projector is not trained.

    Args:
        tower: The vision tower. It becomes a part of the model, not a copy.
        language_model: A causal language model with input embeddings. It becomes a part of the model; its embeddings
            get a row for the image token.
        tokenizer: Its tokenizer. It gets the image token.
        tokens: The number of visual tokens of an image.
        **settings: Further settings of LLaVA's configuration.

    Returns:
        The model, in evaluation mode.
    """
    if IMAGE not in tokenizer.get_vocab():
        tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE]}, replace_extra_special_tokens=False)
    tokenizer.image_token = IMAGE
    add_embeddings(language_model, len(tokenizer))
    config = LlavaConfig(
        vision_config=tower.config,
        # A copy: LLaVA's configuration changes the one of its language model.
        text_config=deepcopy(language_model.config),
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        image_seq_length=tokens,
        tie_word_embeddings=language_model.config.tie_word_embeddings,
        **settings,
    )
    # The language model reads where a visual token is also from its position in the sequence.
    config.eadp_positions = "keep"
    with torch.device("meta"):
        model = LlavaForConditionalGeneration(config)
    model.model.vision_tower = tower
    model.model.language_model = language_model.get_decoder()
    model.lm_head = language_model.get_output_embeddings()
    projector = model.model.multi_modal_projector.to_empty(device="cpu").to(language_model.dtype)
    for linear in (projector.linear_1, projector.linear_2):
        linear.reset_parameters()
    model.generation_config = deepcopy(language_model.generation_config)
    return model.eval()


@torch.no_grad()
def add_embeddings(language_model: Any, tokens: int) -> None:
    """Make the embeddings at least this long. A new row is the mean of the others, which no answer is close to."""
    before = len(language_model.get_input_embeddings().weight)
    if tokens > before:
        embeddings = language_model.resize_token_embeddings(tokens, mean_resizing=False).weight
        embeddings[before:] = embeddings[:before].mean(0)
