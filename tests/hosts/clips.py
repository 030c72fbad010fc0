"""Tiny checkpoints that accept videos, saved like real ones, and a video for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import transformers as hf
from helpers import tiny, tiny_processors

VIDEO = {
    "qwen2_5_vl": "<|vision_start|><|video_pad|><|vision_end|>",
    "qwen3_vl": "<|video_pad|>",
    "llava_onevision": "<video>\n",
    "llava_next_video": "<video>\n",
}
"""What the chat template of a family writes for a video."""


def film(path: Path, frames: int = 24, side: int = 64, rate: int = 4) -> Path:
    """Write a video of noise that is the same every time."""
    noise = np.random.default_rng(0).integers(0, 255, (frames, side, side, 3), dtype=np.uint8)
    with av.open(path, "w") as file:
        stream = file.add_stream("mpeg4", rate=rate)
        stream.width = stream.height = side
        stream.pix_fmt = "yuv420p"
        for picture in noise:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode())
    return path


def save(family: str, folder: Path) -> Path:
    """Save the tiny model of a family with a processor for images and videos."""
    tiny.model(family).save_pretrained(folder)
    _processor(family).save_pretrained(folder)
    return folder


def _processor(family: str) -> Any:
    parts = tiny_processors.processor("llava_next" if family == "llava_next_video" else family)
    template = parts.chat_template.replace(
        "{% else %}{{ part['text'] }}",
        f"{{% elif part['type'] == 'video' %}}{VIDEO[family]}{{% else %}}{{{{ part['text'] }}}}",
    )
    common = {"image_processor": parts.image_processor, "tokenizer": parts.tokenizer, "chat_template": template}
    if family == "llava_onevision":
        videos = hf.LlavaOnevisionVideoProcessor(size={"height": 28, "width": 28})
        return hf.LlavaOnevisionProcessor(
            **common, video_processor=videos, num_image_tokens=49, vision_feature_select_strategy="full"
        )
    if family == "llava_next_video":
        videos = hf.LlavaNextVideoVideoProcessor(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
        return hf.LlavaNextVideoProcessor(
            **common,
            video_processor=videos,
            patch_size=7,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        )
    geometry = {"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 64, "longest_edge": 64 * 64}}
    if family == "qwen3_vl":
        geometry["size"] = {"shortest_edge": 64, "longest_edge": 64 * 64 * 64}
        return hf.Qwen3VLProcessor(**common, video_processor=hf.Qwen3VLVideoProcessor(**geometry))
    return hf.Qwen2_5_VLProcessor(**common, video_processor=hf.Qwen2VLVideoProcessor(**geometry))
