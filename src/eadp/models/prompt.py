"""A chat prompt with placeholders for images and clips, written by the processor's own chat template."""

from __future__ import annotations

from typing import Any


def build_prompt(processor: Any, question: str, images: int = 1, videos: int = 0) -> str:
    """Write the prompt that asks one question about some images or clips.

    The prompt is one user turn, with the images first, then the clips, then the question. It ends where the model's
    answer begins.

    Args:
        processor: A processor with a chat template.
        question: The text of the user turn.
        images: The number of images in the turn.
        videos: The number of clips in the turn.

    Returns:
        The prompt as text, with one placeholder per image and clip, as the processor expects it.

    Raises:
        ValueError: If the processor has no chat template.
    """
    if not getattr(processor, "chat_template", None):
        raise ValueError("the processor has no chat template: write the prompt yourself, with its image placeholders")
    content = [{"type": "image"}] * images + [{"type": "video"}] * videos + [{"type": "text", "text": question}]
    return processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
