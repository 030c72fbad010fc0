"""A model by its name, and a question about pictures as its inputs: what every command starts with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

POCKET = "pocket"


def load_model(name: str, *, dtype: Any = "auto", device: str | None = None) -> tuple[Any, Any]:
    """Model and processor: `pocket`, the folder of a checkpoint, or its name on the hub."""
    if name == POCKET:
        from eadp import pocket

        model, processor = pocket.load()
        return model.to(device or "cpu"), processor
    from transformers import AutoModelForImageTextToText, AutoProcessor

    try:
        model = AutoModelForImageTextToText.from_pretrained(name, dtype=dtype)
    except OSError as error:
        kind = "folder" if Path(name).exists() else "name"
        raise ValueError(
            f"no model can be read from the {kind} {name!r}: give {POCKET!r}, the folder of a checkpoint, or its name "
            f"on the hub ({error})"
        ) from error
    return model.eval().to(device or "cpu"), AutoProcessor.from_pretrained(name)


def ask(processor: Any, images: Sequence[Image.Image], questions: Sequence[str]) -> Any:
    """Inputs for one question about each picture, in the words of the model's own chat template."""
    contents = [[{"type": "image"}, {"type": "text", "text": question}] for question in questions]
    texts = [
        processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        for content in contents
    ]
    return processor(images=list(images), text=texts, return_tensors="pt", padding=len(texts) > 1)
