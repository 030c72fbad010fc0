"""A model by its name, and a question about pictures as its inputs: what every command starts with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

if TYPE_CHECKING:
    from eadp.models.guides import Guide

POCKET, RANDOM = "pocket", "random:"


def load_model(
    name: str, *, dtype: Any = "auto", device: str | None = None, layers: int | None = None
) -> tuple[Any, Any]:
    """Model and processor, on a GPU if there is one.

    name: `pocket`, the folder of a checkpoint, its name on the hub, or `random:llava-1.5-7b` and the like: one of
    `eadp.measure.architectures` with random weights. layers: how many of its layers a random one has.
    """
    try:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"there is no device {device!r}; give cpu, cuda or cuda:1") from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"torch sees no GPU here, so the model cannot go to {device!r}; give cpu")
    if name.startswith(RANDOM):
        from eadp.measure import untrained

        return untrained.load(name.removeprefix(RANDOM), dtype=dtype, device=place, layers=layers)
    if layers is not None:
        raise ValueError(f"only a {RANDOM}… model can be shortened to {layers} layers: {name!r} has its weights")
    model, processor = _pocket() if name == POCKET else _checkpoint(name, dtype)
    return model.to(place), processor


def load_guide(name: str, model: Any, processor: Any) -> Guide:
    """The text guide of a model that `load_model` gave by this name."""
    if name.startswith(RANDOM):
        from eadp.measure import untrained

        return untrained.guide(model, processor)
    from eadp.models.guides import guide_for

    return guide_for(model, processor)


def _pocket() -> tuple[Any, Any]:
    from eadp import pocket

    return pocket.load()


def _checkpoint(name: str, dtype: Any) -> tuple[Any, Any]:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    try:
        return AutoModelForImageTextToText.from_pretrained(name, dtype=dtype).eval(), AutoProcessor.from_pretrained(
            name
        )
    except (OSError, ValueError) as error:
        kind = "folder" if Path(name).exists() else "name"
        raise ValueError(
            f"no model can be read from the {kind} {name!r}: give {POCKET!r}, the folder of a checkpoint, its name on "
            f"the hub, or {RANDOM}llava-1.5-7b and the like ({error})"
        ) from error


def ask(processor: Any, images: Sequence[Image.Image], questions: Sequence[str]) -> Any:
    """Inputs for one question about each picture, in the words of the model's own chat template."""
    conversations = [
        [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": question}]}]
        for image, question in zip(images, questions, strict=True)
    ]
    # In one step, not text first: only so does the processor see that some templates write BOS themselves.
    return processor.apply_chat_template(
        conversations,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        processor_kwargs={"padding": len(conversations) > 1, "return_tensors": "pt"},
    )
