"""Processors of the paper's architectures, without a download.

Each is the family's own processor with the pocket model's tokenizer. That tokenizer has one token per word of the
pocket world, and can encode any other text as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import eadp.compat as compat
from eadp.models.frame_processor import FrameProcessor

CHATML = ("<|im_start|>", "<|im_end|>")
VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")

_LLAVA = {"image_token_index": "<image>"}
_QWEN = dict(
    zip(("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id"), VISION, strict=True)
)
SPECIAL_TOKENS: dict[str, dict[str, str]] = {
    "llava": _LLAVA,
    "llava_next": _LLAVA,
    "llava_onevision": {**_LLAVA, "video_token_index": "<video>"},
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
}
"""The special tokens of each model type, by the names of their fields in the configuration."""


def build_processor(config: Any) -> Any:
    """Build the processor of a configuration, and write the ids of its special tokens into the configuration."""
    tokenizer = _tokenizer()
    for field, token in SPECIAL_TOKENS[config.model_type].items():
        setattr(config, field, tokenizer.convert_tokens_to_ids(token))
    return _BUILDERS[config.model_type](config, tokenizer)


def _tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    from eadp.pocket.storage import WEIGHTS

    tokenizer = PreTrainedTokenizerFast.from_pretrained(WEIGHTS)
    tokenizer.add_special_tokens({"extra_special_tokens": [*CHATML, *VISION, "<video>"]})
    tokenizer.model_max_length = 1 << 20
    return tokenizer


def _chatml(image: str, video: str = "") -> str:
    return (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
        f"{{% if part['type'] == 'image' %}}{image}{{% elif part['type'] == 'video' %}}{video}"
        "{% else %}{{ part['text'] }}{% endif %}"
        "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )


def _llava(config: Any, tokenizer: Any) -> Any:
    import transformers as hf

    from eadp.pocket.text import CHAT_TEMPLATE

    side, vision = config.vision_config.image_size, config.vision_config
    settings = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    processor_class: Any = hf.LlavaProcessor
    images: Any = compat.CLIPImageProcessorPil(**settings)
    if config.model_type == "llava_next":
        processor_class = hf.LlavaNextProcessor
        images = compat.LlavaNextImageProcessorPil(**settings, image_grid_pinpoints=config.image_grid_pinpoints)
    return processor_class(
        images,
        tokenizer,
        patch_size=vision.patch_size,
        vision_feature_select_strategy=config.vision_feature_select_strategy,
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )


def _onevision(config: Any, tokenizer: Any) -> Any:
    import transformers as hf

    vision = config.vision_config
    side = {"height": vision.image_size, "width": vision.image_size}
    return compat.without_video_processor(hf.LlavaOnevisionProcessor)(
        compat.LlavaOnevisionImageProcessorPil(size=side, image_grid_pinpoints=config.image_grid_pinpoints),
        tokenizer,
        num_image_tokens=(vision.image_size // vision.patch_size) ** 2,
        vision_feature_select_strategy=config.vision_feature_select_strategy,
        chat_template=_chatml("<image>\n", "<video>\n"),
    )


def _onevision_with_videos(config: Any, tokenizer: Any) -> Any:
    processor = _onevision(config, tokenizer)
    side = config.vision_config.image_size
    processor.video_processor = FrameProcessor(compat.SiglipImageProcessorPil(size={"height": side, "width": side}))
    return processor


def _qwen(config: Any, tokenizer: Any) -> Any:
    import transformers as hf

    vision = config.vision_config
    token_side = vision.patch_size * vision.spatial_merge_size
    images = compat.Qwen2VLImageProcessorPil(
        patch_size=vision.patch_size,
        merge_size=vision.spatial_merge_size,
        temporal_patch_size=vision.temporal_patch_size,
        size={"shortest_edge": 4 * token_side**2, "longest_edge": 16384 * token_side**2},
    )
    tokenizer.image_token, tokenizer.video_token = VISION[2:]
    processor_class = hf.Qwen2_5_VLProcessor if config.model_type == "qwen2_5_vl" else hf.Qwen3VLProcessor
    template = _chatml("<|vision_start|><|image_pad|><|vision_end|>")
    return compat.without_video_processor(processor_class)(images, tokenizer, chat_template=template)


_BUILDERS: dict[str, Callable[[Any, Any], Any]] = {
    "llava": _llava,
    "llava_next": _llava,
    "llava_onevision": _onevision_with_videos,
    "qwen2_5_vl": _qwen,
    "qwen3_vl": _qwen,
}
