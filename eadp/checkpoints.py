"""A model by its name, and a question about pictures as its inputs: what every command starts with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

POCKET = "pocket"


def load_model(name: str, *, dtype: Any = "auto", device: str | None = None) -> tuple[Any, Any]:
    """Model and processor: `pocket`, the folder of a checkpoint, or its name on the hub; on a GPU if there is one."""
    model, processor = _pocket() if name == POCKET else _checkpoint(name, dtype)
    return model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")), processor


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
            f"no model can be read from the {kind} {name!r}: give {POCKET!r}, the folder of a checkpoint, or its name "
            f"on the hub ({error})"
        ) from error


def ask(processor: Any, images: Sequence[Image.Image], questions: Sequence[str]) -> Any:
    """Inputs for one question about each picture, in the words of the model's own chat template."""
    contents = [[{"type": "image"}, {"type": "text", "text": question}] for question in questions]
    texts = [
        processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        for content in contents
    ]
    return processor(images=list(images), text=texts, return_tensors="pt", padding=len(texts) > 1)
