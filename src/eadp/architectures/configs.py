"""Complete configurations of the paper's models, without weights and without a download."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

CLIP_L: dict[str, Any] = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "projection_dim": 768,
}
SIGLIP_SO: dict[str, Any] = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 26,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
    "vision_use_head": False,
}
TINY_TOWER = {
    **CLIP_L,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "projection_dim": 64,
}
TINY_SIGLIP = {
    **SIGLIP_SO,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
TINY_QWEN3_TOWER: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "depth": 3,
    "num_heads": 4,
    "deepstack_visual_indexes": [0, 1],
}
VICUNA_7B = {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096}
VICUNA_13B = {
    **VICUNA_7B,
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
}
NEXT_CROPS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
ONEVISION_CROPS = [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)]


def _text_config(
    width: int, inner: int, layers: int, heads: int, key_heads: int, vocabulary: int, **other: Any
) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "vocab_size": vocabulary,
        **other,
    }


def _mrope(theta: float, *section: int) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, "mrope_section": list(section)}}


def _llava(text: dict[str, Any], vision: dict[str, Any] = CLIP_L) -> PreTrainedConfig:
    from transformers import LlavaConfig

    return LlavaConfig(vision_config=vision, text_config=text)


def _llava_next(text: dict[str, Any], vision: dict[str, Any] = CLIP_L) -> PreTrainedConfig:
    from transformers import LlavaNextConfig

    return LlavaNextConfig(vision_config=vision, text_config=text, image_grid_pinpoints=NEXT_CROPS)


def _llava_onevision(text: dict[str, Any], vision: dict[str, Any] = SIGLIP_SO) -> PreTrainedConfig:
    from transformers import LlavaOnevisionConfig

    text = {**text, "model_type": "qwen2"}
    return LlavaOnevisionConfig(vision_config=vision, text_config=text, image_grid_pinpoints=ONEVISION_CROPS)


def _qwen2_5_vl(text: dict[str, Any]) -> PreTrainedConfig:
    from transformers import Qwen2_5_VLConfig

    vision = {"hidden_size": 1280, "out_hidden_size": text["hidden_size"]}
    return Qwen2_5_VLConfig(vision_config=vision, text_config=text | _mrope(1e6, 16, 24, 24))


def _qwen3_vl(text: dict[str, Any], vision: dict[str, Any] | None = None) -> PreTrainedConfig:
    from transformers import Qwen3VLConfig

    vision = {**(vision or {}), "out_hidden_size": text["hidden_size"]}
    return Qwen3VLConfig(vision_config=vision, text_config=text | _mrope(5e6, 24, 20, 20))


QWEN2_05B = _text_config(896, 4864, 24, 14, 2, 152000, tie_word_embeddings=True)
QWEN2_3B = _text_config(2048, 11008, 36, 16, 2, 151936, tie_word_embeddings=True)
QWEN2_7B = _text_config(3584, 18944, 28, 28, 4, 152064)
TINY = _text_config(64, 128, 4, 4, 2, 8192, model_type="llama", max_position_embeddings=4096)
QWEN3_8B = _text_config(4096, 12288, 36, 32, 8, 151936, head_dim=128)

ARCHITECTURES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llava-1.5-7b": lambda: _llava(VICUNA_7B),
    "llava-1.5-13b": lambda: _llava(VICUNA_13B),
    "llava-next-7b": lambda: _llava_next(VICUNA_7B),
    "llava-next-13b": lambda: _llava_next(VICUNA_13B),
    "llava-onevision-0.5b": lambda: _llava_onevision(QWEN2_05B),
    "llava-onevision-7b": lambda: _llava_onevision(QWEN2_7B),
    "qwen2.5-vl-3b": lambda: _qwen2_5_vl(QWEN2_3B),
    "qwen2.5-vl-7b": lambda: _qwen2_5_vl(QWEN2_7B),
    "qwen3-vl-8b": lambda: _qwen3_vl(QWEN3_8B),
    "tiny-llava": lambda: _llava(TINY, TINY_TOWER),
    "tiny-llava-next": lambda: _llava_next(TINY, TINY_TOWER),
    "tiny-llava-onevision": lambda: _llava_onevision(TINY, TINY_SIGLIP),
    "tiny-qwen3-vl": lambda: _qwen3_vl({**TINY, "model_type": "qwen3_vl_text"}, TINY_QWEN3_TOWER),
}
"""Builders of configurations by name."""


GRIDS: dict[str, list[tuple[int, int]]] = {
    "llava": [(24, 24)],
    "llava_next": [(24, 24)] * 5,
    "llava_onevision": [(27, 27)] * 5,
    "qwen2_5_vl": [(36, 36)],
    "qwen3_vl": [(32, 32)],
}
"""The blocks of tokens of one image by model type, as in the paper.

LLaVA-NeXT and LLaVA-OneVision: the whole image and 2×2 crops. Qwen2.5-VL: 1008² pixels. Qwen3-VL: 1024² pixels.
"""


CLIP_L_TEXT = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "projection_dim": 768,
}
SIGLIP_SO_TEXT = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "projection_size": 1152,
}


def text_encoder_config(config: Any) -> PreTrainedConfig | None:
    """Build the configuration of the text encoder that a model's vision tower was trained with.

    If the tower was shortened, the text encoder is shortened in proportion. A tower other than CLIP-L and SigLIP-SO
    gets a text encoder of the tower's own width and depth.

    Args:
        config: The configuration of a vision-language model.

    Returns:
        The configuration; None if the model's text guide is the embedding table of its language model.
    """
    from transformers import CLIPTextConfig, SiglipTextConfig

    from eadp.models.guides import LOADERS, TOWER_FAMILIES

    vision = config.vision_config
    if config.model_type not in TOWER_FAMILIES or vision.model_type not in LOADERS:
        return None
    clip = vision.model_type == "clip_vision_model"
    tower, known = (CLIP_L, CLIP_L_TEXT) if clip else (SIGLIP_SO, SIGLIP_SO_TEXT)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    settings: dict[str, Any] = {name: getattr(vision, name) for name in names}
    settings["projection_dim" if clip else "projection_size"] = vision.projection_dim if clip else vision.hidden_size
    if vision.hidden_size == tower["hidden_size"]:
        share = vision.num_hidden_layers / tower["num_hidden_layers"]
        settings = known | {"num_hidden_layers": max(1, round(known["num_hidden_layers"] * share))}
    return CLIPTextConfig(**settings) if clip else SiglipTextConfig(**settings, bos_token_id=None, eos_token_id=None)


def build_text_encoder(config: Any) -> Any:
    """Build the encoder that `text_encoder_config` describes."""
    from transformers import CLIPTextModel, SiglipTextModel

    return CLIPTextModel(config) if config.model_type == "clip_text_model" else SiglipTextModel(config)


def default_grids(config: Any) -> list[tuple[int, int]]:
    """Return the grids of one image's blocks of tokens, as in the paper.

    Raises:
        ValueError: If the paper does not use this type of model.
    """
    if config.model_type not in GRIDS:
        raise ValueError(f"the number of tokens of an image is not known for {config.model_type}: give --grid 24x24")
    return GRIDS[config.model_type]


def build_meta_model(config: Any) -> Any:
    """Build the model of a configuration on the meta device: shapes without values."""
    import torch
    from transformers import AutoModelForImageTextToText

    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(config)


def load_config(name: str) -> PreTrainedConfig:
    """Load a configuration.

    Args:
        name: One of `ARCHITECTURES`, the folder of a checkpoint, or its name on the hub.

    Raises:
        ValueError: If there is no such architecture or checkpoint.
    """
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]()
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"{name!r} is neither a checkpoint that can be read nor one of {known}: {error}") from error
