"""The architecture of the models for the world of things: a CLIP vision tower, its text encoder, a small Llama."""

from __future__ import annotations

from transformers import CLIPTextConfig, CLIPVisionConfig, CLIPVisionModel, LlamaConfig, LlamaForCausalLM

from eadp.pocket.model import SPECIAL_IDS, ClipText, make_identity
from eadp.pocket.things.render import PATCH
from eadp.pocket.things.scene import SIDE

WIDTH = 160
"""Width of the tower, of the text encoder and of the space that text and image share."""

HEADS = 5
TOWER_LAYERS = 9
"""Layers of the tower. LLaVA reads the output of the last but one, so the last is left as the identity."""

TEXT_LAYERS = 2
LONGEST_TEXT = 77
"""Tokens that the text encoder reads, as CLIP's."""

LANGUAGE_LAYERS = 8
"""Layers of the pocket model's own language model."""


def tower_config() -> CLIPVisionConfig:
    """Return the configuration of the vision tower."""
    return CLIPVisionConfig(
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=TOWER_LAYERS,
        num_attention_heads=HEADS,
        hidden_act="gelu",
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=WIDTH,
    )


def build_tower() -> CLIPVisionModel:
    """Build an untrained vision tower."""
    tower = CLIPVisionModel(tower_config())
    make_identity(tower.encoder.layers[-1])
    return tower


def build_language_model(vocabulary: int) -> LlamaForCausalLM:
    """Build the pocket model's own language model, untrained, for a vocabulary of this size."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=5 * WIDTH // 2,
        num_hidden_layers=LANGUAGE_LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        **SPECIAL_IDS,
    )
    return LlamaForCausalLM(config)


def build_clip_text(vocabulary: int) -> ClipText:
    """Build an untrained text encoder for a vocabulary of this size."""
    config = CLIPTextConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=TEXT_LAYERS,
        num_attention_heads=HEADS,
        projection_dim=WIDTH,
        max_position_embeddings=LONGEST_TEXT,
        hidden_act="gelu",
        **SPECIAL_IDS,
    )
    return ClipText(config, WIDTH)
