"""Chat prompts about images and clips, by the processor's own chat template: as text and as a model's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

Conversation = list[dict[str, Any]]
"""Chat messages: {"role": …, "content": [{"type": "image", "image": …}, {"type": "text", "text": …}]}."""


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


def build_inputs(processor: Any, images: Sequence[Image.Image], questions: Sequence[str]) -> Any:
    """Build a batch of prompts, each with one question about one image.

    Args:
        processor: A processor with a chat template.
        images: One image per prompt.
        questions: One question per prompt.

    Returns:
        The inputs of the model, padded if there is more than one prompt.
    """
    conversations = [
        [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": question}]}]
        for image, question in zip(images, questions, strict=True)
    ]
    return tokenize_conversations(processor, conversations)


def build_clip_inputs(model: Any, processor: Any, images: Sequence[Image.Image], question: str) -> Any:
    """Build the prompt that asks one question about one image or one clip.

    A clip is passed as a video if the model takes videos, otherwise as several images.

    Args:
        model: The model; its configuration says whether it takes videos.
        processor: A processor with a chat template.
        images: One image, or the frames of the clip.
        question: The question.

    Returns:
        The inputs of the model.
    """
    if len(images) == 1:
        return build_inputs(processor, images, [question])
    if getattr(model.config, "video_token_id", None) is not None:
        text = build_prompt(processor, question, images=0, videos=1)
        return processor(text=[text], videos=[list(images)], return_tensors="pt")
    text = build_prompt(processor, question, images=len(images))
    return processor(text=[text], images=list(images), return_tensors="pt")


def tokenize_conversations(processor: Any, conversations: Sequence[Conversation], **options: Any) -> Any:
    """Turn conversations into one batch of the model's inputs, up to where its answers begin.

    Args:
        processor: A processor with a chat template.
        conversations: Chat messages whose images and videos are already read.
        **options: Further arguments for the processor.

    Returns:
        The inputs of the model, padded if there is more than one conversation.
    """
    # Template and tokenizer in one step: only then does the processor know that some templates write BOS themselves.
    return processor.apply_chat_template(
        conversations,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        processor_kwargs={"padding": len(conversations) > 1, "return_tensors": "pt", **options},
    )
