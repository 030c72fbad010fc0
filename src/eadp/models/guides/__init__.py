"""Text guides: they bring the question into a space that it shares with the visual tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from eadp.models.guides.base import Guide, tokenizer_of
from eadp.models.guides.classifier import ClassifierGuide
from eadp.models.guides.clip import CLIPGuide
from eadp.models.guides.embedding import EmbeddingGuide
from eadp.models.guides.loading import SIDECAR, checkpoint_of, load_clip, load_sidecar, load_siglip
from eadp.models.guides.siglip import SiglipGuide

__all__ = [
    "CLIPGuide",
    "ClassifierGuide",
    "EmbeddingGuide",
    "Guide",
    "SiglipGuide",
    "guide_for",
    "shared_guide_for",
    "tower_guide_for",
]

TOWER_FAMILIES = {"llava", "llava_next", "llava_next_video", "llava_onevision"}
"""Families whose visual tokens are one to one with states of a tower that may have a text encoder."""
LOADERS = {"clip_vision_model": load_clip, "siglip_vision_model": load_siglip}
CLASSIFIER = "efficientnet_lite"
"""The model type of the vision tower that tells classes apart."""


def guide_for(model: Any, processor: Any, checkpoint: str | None = None, *, sign: float | None = None) -> Guide:
    """Build the guide for the model's family.

    For the LLaVA families it is the text encoder of CLIP or SigLIP, or the classes of EfficientNet-Lite, depending on
    their vision tower; for every other model, the language model's input embeddings.

    Args:
        model: The model.
        processor: Its processor or tokenizer.
        checkpoint: The name or folder of the CLIP or SigLIP to load. Default: the text encoder in the model's own
            folder (`clip_text.safetensors`), or else the checkpoint that the tower came from.
        sign: The sign of the guide, in place of its own.

    Raises:
        ValueError: If a checkpoint is given for a model that needs none, or the right one is not known.
        OSError: If the checkpoint cannot be loaded.
    """
    if _has_text_encoder(model):
        folder = getattr(model, "name_or_path", "")
        norm = _post_layernorm(model)
        return tower_guide_for(model.config.vision_config, norm, folder, processor, checkpoint, sign=sign)
    by = "the classes of its vision tower" if _has_classes(model) else "its own input embeddings"
    if checkpoint is not None:
        raise ValueError(
            f"{model.config.model_type} is guided by {by}, so there is no text encoder to load "
            f"from checkpoint={checkpoint!r}: leave it out, or pass a guide of your own"
        )
    options = {} if sign is None else {"sign": sign}
    if _has_classes(model):
        return ClassifierGuide(_vision_tower(model).classifier, **options)
    return EmbeddingGuide(model.get_input_embeddings(), processor, **options)


_shared: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], Guide]] = WeakKeyDictionary()
"""The guides of each model."""


def shared_guide_for(model: Any, processor: Any, checkpoint: str | None = None) -> Guide:
    """Return the guide for the model's family; the same one each time, as long as the model lives.

    Args:
        model: The model.
        processor: As in `guide_for`.
        checkpoint: As in `guide_for`.
    """
    guides = _shared.setdefault(model, {})
    # A guide holds its processor's tokenizer and this part of the model, so their ids are not used again.
    key = checkpoint, id(tokenizer_of(processor)), id(_shared_part(model))
    if key not in guides:
        guides[key] = guide_for(model, processor, checkpoint)
    return guides[key]


def _shared_part(model: Any) -> nn.Module:
    """The part of a model that its guide shares."""
    if _has_classes(model):
        return _vision_tower(model).classifier
    return _post_layernorm(model) if _has_text_encoder(model) else model.get_input_embeddings()


def _has_text_encoder(model: Any) -> bool:
    """Whether the model's vision tower was trained with a text encoder that can be loaded."""
    return _tower_type(model) in LOADERS


def _has_classes(model: Any) -> bool:
    """Whether the model's vision tower tells classes apart that have words."""
    return _tower_type(model) == CLASSIFIER


def _tower_type(model: Any) -> str | None:
    """The model type of the vision tower of a family whose tokens are states of the tower."""
    vision_config = getattr(model.config, "vision_config", None)
    return vision_config.model_type if model.config.model_type in TOWER_FAMILIES and vision_config else None


def tower_guide_for(
    vision_config: Any,
    post_layernorm: nn.LayerNorm,
    folder: str,
    processor: Any,
    checkpoint: str | None = None,
    *,
    sign: float | None = None,
) -> Guide:
    """Build the guide for a CLIP or SigLIP vision tower, without a model.

    Args:
        vision_config: The configuration of the vision tower.
        post_layernorm: The last norm of the tower.
        folder: The folder of the model, which may have the text encoder.
        processor: The processor or tokenizer of the model.
        checkpoint: As in `guide_for`.
        sign: As in `guide_for`.
    """
    options = {} if sign is None else {"sign": sign}
    loader = LOADERS[vision_config.model_type]
    if loader is load_clip and checkpoint is None and (Path(folder) / SIDECAR).is_file():
        return load_sidecar(Path(folder), post_layernorm, processor, **options)
    return loader(checkpoint or checkpoint_of(vision_config), post_layernorm, **options)


def _post_layernorm(model: nn.Module) -> Any:
    """The last norm of a model's vision tower."""
    tower = _vision_tower(model)
    # Some releases of transformers keep the tower's layers one level lower, in `vision_model`.
    return getattr(tower, "vision_model", tower).post_layernorm


def _vision_tower(model: nn.Module) -> Any:
    # By name, so that it is also found inside a wrapper such as a PEFT model.
    return next(module for name, module in model.named_modules() if name.rpartition(".")[2] == "vision_tower")
