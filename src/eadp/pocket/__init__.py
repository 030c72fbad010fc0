"""The pocket model: a small LLaVA for scenes of coloured shapes and signs, which ships with the package.

    model, processor = eadp.pocket.load()
    with eadp.attach(model, processor, keep=32): …

It is a toy: its figures show how a method behaves, not how accurate it is on photographs.
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
    """Load the pocket model and its processor, both plain transformers classes.

    Args:
        folder: A folder that `make pocket` wrote; None for the weights that ship with the package.

    Returns:
        The model, in single precision on the CPU and in evaluation mode, and its processor.

    Raises:
        FileNotFoundError: If the folder holds no pocket model.
    """
    source = storage.WEIGHTS if folder is None else Path(folder)
    return storage.load_model(source), storage.load_processor(source)


def guide(model: LlavaForConditionalGeneration, processor: LlavaProcessor, sign: float | None = None) -> Guide:
    """Load the text guide of the pocket model: the text encoder of its CLIP. `attach` finds it without this call.

    Args:
        model: The model from `load`.
        processor: The processor from `load`.
        sign: The sign of the similarity of text and image; None for the one stored with the weights.
    """
    from eadp.models.guides import guide_for

    return guide_for(model, processor, sign=sign)
