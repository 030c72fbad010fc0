"""The models that run anywhere, offline: small LLaVAs whose weights come with packages.

    model, processor = eadp.load_pocket()
    with eadp.attach(model, processor, keep=32): …

`pocket` ships with this package and knows scenes of coloured shapes and signs. `things` ships with it, too, and knows
scenes of everyday things; `clips` is the same model for clips of them. `smol` puts the same tower in front of
SmolLM2-135M-Instruct, whose weights another package brings. These are toys: their figures show how a method behaves,
not how accurate it is on photographs.

`photo` knows photographs of 1,000 things. It puts EfficientNet-Lite0, which another package brings, in front of the
language model of `smol`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import LlavaForConditionalGeneration, LlavaNextVideoForConditionalGeneration, LlavaProcessor

from eadp.pocket import storage
from eadp.pocket.names import CLIPS, PHOTO, POCKET, SMOL, THINGS

if TYPE_CHECKING:
    from eadp.models.guides import Guide

__all__ = ["checkpoint", "guide", "load"]


def load(name: str | Path = POCKET) -> tuple[Any, Any]:
    """Load a model and its processor, both plain transformers classes.

    Args:
        name: `pocket`, `things`, `clips`, `smol`, `photo`, or a folder that `make pocket` wrote.

    Returns:
        The model, in single precision on the CPU and in evaluation mode, and its processor. `clips` is a LLaVA-NeXT-
        Video, all others are LLaVAs.

    Raises:
        FileNotFoundError: If the folder holds no such model, or the weights of SmolLM2 or EfficientNet-Lite0 are not
            installed.
        ImportError: If the package that reads the weights of SmolLM2 is not installed.
        ValueError: If the installed weights are not the expected ones.
    """
    folder = checkpoint(name)
    if name == CLIPS:
        from eadp.pocket.things.clip_model import build_clip_processor

        model = storage.load_model(folder, LlavaNextVideoForConditionalGeneration)
        return model, build_clip_processor(storage.load_processor(folder))
    return storage.load_model(folder), storage.load_processor(folder)


def checkpoint(name: str | Path = POCKET) -> Path:
    """Return the folder of a model's checkpoint. All but that of `pocket` are written into the user's cache at first.

    Arguments and errors are those of `load`.
    """
    if name == POCKET:
        return storage.WEIGHTS
    if name in (THINGS, CLIPS):
        from eadp.pocket import small

        return small.checkpoint() if name == THINGS else small.clip_checkpoint()
    if name == SMOL:
        from eadp.pocket import smol

        return smol.checkpoint()
    if name == PHOTO:
        from eadp.pocket import photo

        return photo.checkpoint()
    return Path(name)


def guide(model: LlavaForConditionalGeneration, processor: LlavaProcessor, sign: float | None = None) -> Guide:
    """Load the text guide of a model. `attach` finds it without this call.

    It is the text encoder of its CLIP; that of `photo` looks up words in WordNet.

    Args:
        model: The model from `load`.
        processor: The processor from `load`.
        sign: The sign of the similarity of text and image; None for the one stored with the weights.
    """
    from eadp.models.guides import guide_for

    return guide_for(model, processor, sign=sign)
