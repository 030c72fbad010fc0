"""The pocket model: a small LLaVA that knows a world of coloured shapes and signs, and ships with the package.

    model, processor = eadp.pocket.load()
    with eadp.attach(model, processor, keep=32): …

It is a toy: figures on it say how a method behaves, not how well it does on photographs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from transformers import LlavaForConditionalGeneration, LlavaProcessor

from eadp.pocket import storage

if TYPE_CHECKING:
    from eadp.models.guides import Guide

__all__ = ["guide", "load"]


def load(folder: str | Path | None = None) -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    """The model and its processor, plain transformers classes, in single precision on the CPU."""
    place = storage.WEIGHTS if folder is None else Path(folder)
    return storage.load_model(place), storage.load_processor(place)


def guide(model: LlavaForConditionalGeneration, processor: LlavaProcessor, sign: float | None = None) -> Guide:
    """CLIP's text side, which lies beside the model's weights; `attach` finds it by itself."""
    from eadp.models.guides import guide_for

    return guide_for(model, processor, sign=sign)
