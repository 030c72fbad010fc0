"""The architecture of the pocket model: a small LLaVA-1.5, and the text encoder of its CLIP."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from eadp.compat import CLIPImageProcessorPil
from eadp.pocket.text import BOS, CHAT_TEMPLATE, EOS, IMAGE, PAD, SPECIAL
from eadp.pocket.world.scene import SIDE

PATCH = 8
GRID = SIDE // PATCH
"""Visual tokens along each side of the image; an image has GRID² tokens."""

WIDTH = 128
"""Width of the tower, of the language model and of the space that text and image share."""

SPECIAL_IDS: dict[str, Any] = {
    "pad_token_id": SPECIAL.index(PAD),
    "bos_token_id": SPECIAL.index(BOS),
    "eos_token_id": SPECIAL.index(EOS),
}


class ClipText(nn.Module):
    """The parts of CLIP that LLaVA does not have: the text encoder and the two projections into the shared space.

    The shared space has the width of the text encoder.
    """

    def __init__(self, config: CLIPTextConfig, tower_width: int) -> None:
        super().__init__()
        self.text_model = CLIPTextModel(config)
        self.text_projection = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.visual_projection = nn.Linear(tower_width, config.hidden_size, bias=False)

    def encode_tokens(self, ids: Tensor) -> Tensor:
        """Encode token ids, B×L, into one vector per token, B×L×c. The vector of the EOS token is the pooled one."""
        return self.text_projection(self.text_model(input_ids=ids).last_hidden_state)


def build_clip_text(vocabulary: int) -> ClipText:
    """Build an untrained text encoder for a vocabulary of this size."""
    return ClipText(
        CLIPTextConfig(
            vocab_size=vocabulary,
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            projection_dim=WIDTH,
            max_position_embeddings=77,
            hidden_act="gelu",
            **SPECIAL_IDS,
        ),
        WIDTH,
    )


def build_llava(vocabulary: int) -> LlavaForConditionalGeneration:
    """Build an untrained pocket model for a vocabulary of this size."""
    vision = CLIPVisionConfig(
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=6,
        num_attention_heads=4,
        hidden_act="gelu",
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=WIDTH,
    )
    text = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        **SPECIAL_IDS,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=SPECIAL.index(IMAGE),
        image_seq_length=GRID * GRID,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        tie_word_embeddings=True,
    )
    # The model was trained with original positions: it infers where a patch is from its position in the sequence.
    config.eadp_positions = "keep"
    model = LlavaForConditionalGeneration(config)
    # LLaVA reads the layer before the last, so the last one is never trained.
    make_identity(model.model.vision_tower.encoder.layers[-1])
    return model


def build_processor(tokenizer: PreTrainedTokenizerFast) -> LlavaProcessor:
    """Build the processor of the pocket model."""
    return LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}),
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )


def make_identity(layer: nn.Module) -> None:
    """Make a layer of a tower return its input, by what it adds being 0."""
    for linear in (cast(Any, layer).self_attn.out_proj, cast(Any, layer).mlp.fc2):
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)


def encode_patches(tower: CLIPVisionModel, pixels: Tensor, keep: Tensor | None = None) -> Tensor:
    """Compute the tower's second-to-last hidden states, without the cost of the last layer.

    Args:
        tower: The vision tower.
        pixels: B×3×SIDE×SIDE.
        keep: B×n, the patches to encode; None for all.

    Returns:
        B×(1+n)×d, CLS first.
    """
    hidden = tower.embeddings(pixels)
    if keep is not None:
        rows = torch.cat((torch.zeros_like(keep[:, :1]), keep + 1), 1)
        hidden = hidden.gather(1, rows[..., None].expand(-1, -1, hidden.shape[-1]))
    hidden = tower.pre_layrnorm(hidden)
    for layer in tower.encoder.layers[:-1]:
        hidden = layer(hidden, attention_mask=None)
    return hidden
