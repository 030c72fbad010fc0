"""The text side of CLIP or SigLIP from a checkpoint."""

from __future__ import annotations

import warnings
from typing import Any, cast

import torch
from torch import nn

from eadp.models.guides.clip import CLIPGuide
from eadp.models.guides.siglip import SiglipGuide

# The tower's model type, width, patch size and image size → where it came from.
CHECKPOINTS = {
    ("clip_vision_model", 1024, 14, 336): "openai/clip-vit-large-patch14-336",
    ("clip_vision_model", 1024, 14, 224): "openai/clip-vit-large-patch14",
    ("clip_vision_model", 768, 16, 224): "openai/clip-vit-base-patch16",
    ("clip_vision_model", 768, 32, 224): "openai/clip-vit-base-patch32",
    ("siglip_vision_model", 1152, 14, 384): "google/siglip-so400m-patch14-384",
    ("siglip_vision_model", 1152, 14, 224): "google/siglip-so400m-patch14-224",
    ("siglip_vision_model", 768, 16, 384): "google/siglip-base-patch16-384",
    ("siglip_vision_model", 768, 16, 224): "google/siglip-base-patch16-224",
}


def checkpoint_of(tower: Any) -> str:
    """The checkpoint that a vision tower came from, by its config."""
    key = (tower.model_type, tower.hidden_size, tower.patch_size, tower.image_size)
    if key not in CHECKPOINTS:
        raise ValueError(
            f"no known checkpoint has a {key[0]} of {key[1]} channels with {key[2]}-pixel patches of a {key[3]}-pixel "
            "image: pass checkpoint= (a name or a folder) with the model that the tower was taken from"
        )
    return CHECKPOINTS[key]


def load_clip(checkpoint: str, tower: nn.Module, **options: Any) -> CLIPGuide:
    """CLIP's text model and both projections; its vision model is read to compare and let go."""
    from transformers import CLIPModel

    post_layernorm = _post_layernorm(tower)
    clip = _load(CLIPModel, "clip", checkpoint, post_layernorm.weight.dtype)
    guide = CLIPGuide(
        text_model=clip.text_model,
        text_projection=clip.text_projection,
        visual_projection=clip.visual_projection,
        post_layernorm=post_layernorm,
        tokenizer=_tokenizer(checkpoint),
        **options,
    )
    theirs, ours = clip.vision_model.post_layernorm.weight, post_layernorm.weight
    # No gradient reaches this layer when the layer before the last is used, so even a tuned tower has it unchanged.
    if ours.device.type != "meta" and not torch.allclose(theirs.float(), ours.float().cpu(), rtol=0.02, atol=1e-3):
        warnings.warn(
            f"the vision tower does not come from {checkpoint}: its post_layernorm differs. Maps will mean little; "
            "pass checkpoint= with the CLIP that the tower was taken from",
            stacklevel=2,
        )
    return guide


def load_siglip(checkpoint: str, tower: nn.Module, **options: Any) -> SiglipGuide:
    """SigLIP's text model; the rest of the checkpoint is not read."""
    from transformers import SiglipTextModel

    post_layernorm = _post_layernorm(tower)
    text_model = _load(SiglipTextModel, "siglip", checkpoint, post_layernorm.weight.dtype)
    tokenizer = _tokenizer(checkpoint)
    return SiglipGuide(text_model=text_model, post_layernorm=post_layernorm, tokenizer=tokenizer, **options)


def _post_layernorm(tower: nn.Module) -> nn.LayerNorm:
    """The tower's own; some releases of transformers keep its layers one level lower, in `vision_model`."""
    return cast(nn.LayerNorm, getattr(tower, "vision_model", tower).post_layernorm)


def _load(kind: Any, family: str, checkpoint: str, dtype: torch.dtype) -> Any:
    from transformers import AutoConfig

    remedy = (
        f"pass checkpoint= with the name or the folder of a {family} checkpoint in safetensors and its tokenizer, "
        "or a guide of your own"
    )
    try:
        found = AutoConfig.from_pretrained(checkpoint).model_type
        if found != family:
            raise ValueError(f"{checkpoint} is a {found} checkpoint, but the vision tower is {family}'s: {remedy}")
        model, report = kind.from_pretrained(checkpoint, dtype=dtype, use_safetensors=True, output_loading_info=True)
    except (OSError, RuntimeError, ImportError) as error:
        raise OSError(f"the text encoder could not be loaded from {checkpoint!r}: {remedy} ({error})") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise ValueError(f"{checkpoint} lacks {', '.join(missing[:3])}{', …' * (len(missing) > 3)}: {remedy}")
    return model.eval().requires_grad_(False)


def _tokenizer(checkpoint: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(checkpoint)
    except (OSError, ImportError, ValueError) as error:
        raise OSError(
            f"the tokenizer could not be loaded from {checkpoint!r} (SigLIP's needs the packages sentencepiece and "
            f"protobuf): {error}"
        ) from error
