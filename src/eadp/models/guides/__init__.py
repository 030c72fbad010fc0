"""Text guides: the question in a space that it shares with the visual tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from eadp.models.guides.base import Guide
from eadp.models.guides.clip import CLIPGuide
from eadp.models.guides.embedding import EmbeddingGuide
from eadp.models.guides.loading import SIDECAR, checkpoint_of, load_clip, load_sidecar, load_siglip
from eadp.models.guides.siglip import SiglipGuide

__all__ = ["CLIPGuide", "EmbeddingGuide", "Guide", "SiglipGuide", "guide_for"]

# Families whose visual tokens are one to one with states of a tower that has a text encoder.
TOWER_FAMILIES = {"llava", "llava_next", "llava_next_video", "llava_onevision"}
LOADERS = {"clip_vision_model": load_clip, "siglip_vision_model": load_siglip}


def guide_for(model: Any, processor: Any, checkpoint: str | None = None, *, sign: float | None = None) -> Guide:
    """The right guide for the model's family.

    CLIP's or SigLIP's text encoder for the LLaVA families, by their vision tower; the language model's input embeddings
    for every other model.

    checkpoint: name or folder of the CLIP or SigLIP to load; by default the text side that the model's folder carries
                (`clip_text.safetensors`), else the checkpoint that the tower came from.
    sign:       instead of the guide's own.
    """
    options = {} if sign is None else {"sign": sign}
    tower = getattr(model.config, "vision_config", None)
    loader = LOADERS.get(tower.model_type) if tower and model.config.model_type in TOWER_FAMILIES else None
    folder = Path(getattr(model, "name_or_path", ""))
    if loader is load_clip and checkpoint is None and (folder / SIDECAR).is_file():
        return load_sidecar(folder, _vision_tower(model), processor, **options)
    if loader:
        return loader(checkpoint or checkpoint_of(tower), _vision_tower(model), **options)
    if checkpoint is not None:
        raise ValueError(
            f"{model.config.model_type} is guided by its own input embeddings, so there is no text encoder to load "
            f"from checkpoint={checkpoint!r}: leave it out, or pass a guide of your own"
        )
    return EmbeddingGuide(model.get_input_embeddings(), processor, **options)


def _vision_tower(model: nn.Module) -> nn.Module:
    """By name, so that it is also found inside a wrapper such as an adapter."""
    return next(module for name, module in model.named_modules() if name.rpartition(".")[2] == "vision_tower")
