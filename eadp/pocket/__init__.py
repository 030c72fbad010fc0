"""The pocket model: a small LLaVA that knows a world of coloured shapes and signs, and ships with the package.

    model, processor = eadp.pocket.load()
    guide = eadp.pocket.guide(model)

It is a toy: figures on it say how a method behaves, not how well it does on photographs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from transformers import LlavaForConditionalGeneration, LlavaProcessor

from eadp.pocket import storage

if TYPE_CHECKING:
    from eadp.models.guides import CLIPGuide

SIGN = 1.0
"""The pocket CLIP is trained patch by patch, so that its maps light up the object: nothing to negate."""

__all__ = ["SIGN", "guide", "load"]


def load(folder: str | Path | None = None) -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    """The model and its processor, plain transformers classes, in single precision on the CPU."""
    place = storage.WEIGHTS if folder is None else Path(folder)
    return storage.load_model(place), storage.load_processor(place)


def guide(model: LlavaForConditionalGeneration, folder: str | Path | None = None, sign: float = SIGN) -> CLIPGuide:
    """CLIP's text side, in the space that the model's vision tower was trained to share with it."""
    from eadp.models.guides import CLIPGuide

    place = storage.WEIGHTS if folder is None else Path(folder)
    clip = storage.load_clip_text(place)
    return CLIPGuide(
        text_model=clip.text_model,
        text_projection=clip.text_projection,
        visual_projection=clip.visual_projection,
        post_layernorm=model.model.vision_tower.post_layernorm,
        tokenizer=storage.load_processor(place).tokenizer,
        sign=sign,
    )
