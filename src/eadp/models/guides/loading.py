"""Load the text encoder of CLIP or SigLIP from a checkpoint."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from eadp.models.guides.base import tokenizer_of
from eadp.models.guides.clip import CLIPGuide
from eadp.models.guides.siglip import SiglipGuide

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
"""The checkpoint of a tower, by its model type, width, patch size and image size."""

SIDECAR, TEXT = "clip_text.safetensors", "text_model."
"""The file of a text encoder in the folder of a model, and the prefix of its weights."""

SIDECAR_TOKENIZER = "clip_tokenizer"
"""The folder with the tokenizer of that text encoder."""

REMEDY = "give attach's guide= (or guide_for's checkpoint=) the name or folder of"


def checkpoint_of(tower: Any) -> str:
    """Find the checkpoint that a vision tower came from, by its configuration.

    Raises:
        ValueError: If no known checkpoint has such a tower.
    """
    key = (tower.model_type, tower.hidden_size, tower.patch_size, tower.image_size)
    if key not in CHECKPOINTS:
        raise ValueError(
            f"no known checkpoint has a {key[0]} of {key[1]} channels with {key[2]}-pixel patches of a {key[3]}-pixel "
            f"image: {REMEDY} the model that the tower was taken from"
        )
    return CHECKPOINTS[key]


def load_clip(checkpoint: str, post_layernorm: nn.LayerNorm, **options: Any) -> CLIPGuide:
    """Load CLIP's text model and both projections. Its vision model is only compared with the tower.

    Args:
        checkpoint: The name or folder of the checkpoint.
        post_layernorm: The last norm of the model's vision tower.
        **options: Options of the guide.
    """
    from transformers import CLIPModel

    clip = _load(CLIPModel, "clip", checkpoint, post_layernorm)
    return CLIPGuide(
        text_model=clip.text_model,
        text_projection=clip.text_projection,
        visual_projection=clip.visual_projection,
        post_layernorm=post_layernorm,
        tokenizer=_tokenizer(checkpoint),
        **options,
    )


def load_sidecar(folder: Path, post_layernorm: nn.LayerNorm, processor: Any, **options: Any) -> CLIPGuide:
    """Load CLIP's text encoder from the folder of a model.

    `clip_text.json` has the text model's configuration and the guide's sign. `clip_text.safetensors` has
    `text_model.*`, `text_projection.weight` and `visual_projection.weight`. The folder `clip_tokenizer` has its
    tokenizer, if it is not that of the language model.

    Args:
        folder: The folder of the model.
        post_layernorm: The last norm of its vision tower.
        processor: Its processor or tokenizer.
        **options: Options of the guide.
    """
    from transformers import AutoTokenizer, CLIPTextConfig, CLIPTextModel

    settings = json.loads((folder / SIDECAR).with_suffix(".json").read_text())
    sign = settings.pop("sign", -1.0)
    weights = {name: value.to(post_layernorm.weight.dtype) for name, value in load_file(folder / SIDECAR).items()}
    text_model: Any = CLIPTextModel(CLIPTextConfig.from_dict(settings))
    text_model.to(post_layernorm.weight.dtype)
    text_model.load_state_dict(
        {name.removeprefix(TEXT): value for name, value in weights.items() if name.startswith(TEXT)}
    )
    own = folder / SIDECAR_TOKENIZER
    tokenizer = AutoTokenizer.from_pretrained(own, trust_remote_code=False) if own.is_dir() else tokenizer_of(processor)
    return CLIPGuide(
        text_model=text_model.eval().requires_grad_(False),
        text_projection=_projection(weights["text_projection.weight"]),
        visual_projection=_projection(weights["visual_projection.weight"]),
        post_layernorm=post_layernorm,
        tokenizer=tokenizer,
        **{"sign": sign, **options},
    )


def _projection(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


def load_siglip(checkpoint: str, post_layernorm: nn.LayerNorm, **options: Any) -> SiglipGuide:
    """Load SigLIP's text model. Its vision model is only compared with the tower.

    Args:
        checkpoint: The name or folder of the checkpoint.
        post_layernorm: The last norm of the model's vision tower.
        **options: Options of the guide.
    """
    from transformers import SiglipModel

    siglip = _load(SiglipModel, "siglip", checkpoint, post_layernorm)
    tokenizer = _tokenizer(checkpoint)
    return SiglipGuide(text_model=siglip.text_model, post_layernorm=post_layernorm, tokenizer=tokenizer, **options)


def _load(kind: Any, family: str, checkpoint: str, ours: nn.LayerNorm) -> Any:
    """Load a model with all its weights from safetensors, in the dtype of our tower."""
    from transformers import AutoConfig

    remedy = f"{REMEDY} a {family} checkpoint in safetensors, with its tokenizer"
    try:
        found = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False).model_type
    except (OSError, ValueError) as error:
        raise OSError(f"there is no text encoder at {checkpoint!r}: {remedy} ({error})") from error
    if found != family:
        raise ValueError(f"{checkpoint} is a {found} checkpoint, but the vision tower is {family}'s: {remedy}")
    try:
        model, report = kind.from_pretrained(
            checkpoint, dtype=ours.weight.dtype, use_safetensors=True, output_loading_info=True
        )
    except (OSError, RuntimeError) as error:
        raise OSError(f"the text encoder at {checkpoint!r} could not be loaded: {remedy} ({error})") from error
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"{checkpoint} lacks {missing[0]} ({len(missing)} weights in all): {remedy}")
    _compare(model.vision_model.post_layernorm, ours, checkpoint)
    return model.eval().requires_grad_(False)


def _compare(theirs: nn.LayerNorm, ours: nn.LayerNorm, checkpoint: str) -> None:
    """Warn if the tower does not come from the checkpoint."""
    # A model that reads a layer before this norm sends it no gradient, so even a fine-tuned tower has it unchanged.
    if ours.weight.device.type == "meta" or theirs.weight.shape != ours.weight.shape:
        return  # There is nothing to compare, or a mismatch that the guide refuses.
    if not torch.allclose(theirs.weight.float(), ours.weight.float().cpu(), rtol=0.02, atol=1e-3):
        warnings.warn(
            f"the vision tower does not come from {checkpoint}: its post_layernorm differs, so maps will mean "
            f"little; {REMEDY} the model that the tower was taken from",
            stacklevel=6,
        )


def _tokenizer(checkpoint: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False)
    except (OSError, ImportError, ValueError) as error:
        raise OSError(
            f"the tokenizer could not be loaded from {checkpoint!r} (SigLIP's needs the packages sentencepiece and "
            f"protobuf): {error}"
        ) from error
