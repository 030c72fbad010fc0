"""Qwen3-VL in vLLM. Its rows hold the DeepStack levels after the feature, so that pruning rows prunes all of them.

Each frame of a clip stands between text: its time before it, and the marks of an image around it. How many tokens each
frame keeps is known only after encoding. So the plugin's rows cover the text too, and the prompt has the placeholders
of all frames in the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eadp.models.qwen import Qwen3VLGeometry
from eadp.serve.compat import (
    MULTIMODAL_REGISTRY,
    Qwen3VLDummyInputsBuilder,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMultiModalProcessor,
    Qwen3VLProcessingInfo,
    cached_tokenizer_from_config,
)
from eadp.serve.mrope import SpanLayout
from eadp.serve.qwen_base import QwenPruningModel, QwenPruningProcessor

LONGEST_TIME = 99999.9
"""A time in seconds whose text is at least as long as that of any frame."""


def encode_time(tokenizer: Any, seconds: float) -> list[int]:
    """Return the tokens of the time before a frame."""
    return tokenizer.encode(f"<{seconds:.1f} seconds>", add_special_tokens=False)


def clip_span(config: Any, tokenizer: Any, data: Mapping[str, Any], frames: int, rows: int, columns: int) -> SpanLayout:
    """Return the rows of an unpruned clip."""
    times = [float(each) for each in data["timestamps"]]
    if len(times) != frames:
        raise ValueError(f"the clip has {frames} frames, but {len(times)} times")
    start, end = [config.vision_start_token_id], [config.vision_end_token_id]
    return SpanLayout.from_frames([(encode_time(tokenizer, each) + start, end) for each in times], rows, columns)


class EadpQwen3VLProcessingInfo(Qwen3VLProcessingInfo):
    """vLLM's processing info of Qwen3-VL, with the rows of text between frames."""

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        counts = dict(super().get_mm_max_tokens_per_item(seq_len, mm_counts))
        if "video" in counts:
            frames = self.get_num_frames_with_most_features(seq_len, mm_counts)
            text = len(encode_time(self.get_tokenizer(), LONGEST_TIME)) + 2
            counts["video"] += text * -(-frames // self.get_hf_config().vision_config.temporal_patch_size)
        return counts


class EadpQwen3VLProcessor(QwenPruningProcessor, Qwen3VLMultiModalProcessor):
    """vLLM's processor of Qwen3-VL, with shortened prompts."""

    def clip_span(self, data: Mapping[str, Any], frames: int, rows: int, columns: int) -> SpanLayout:
        return clip_span(self.info.get_hf_config(), self.info.get_tokenizer(), data, frames, rows, columns)


@MULTIMODAL_REGISTRY.register_processor(
    EadpQwen3VLProcessor, info=EadpQwen3VLProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class EadpQwen3VLForConditionalGeneration(QwenPruningModel, Qwen3VLForConditionalGeneration):
    """vLLM's model of Qwen3-VL, with pruned images and clips."""

    geometry_class = Qwen3VLGeometry
    processor = EadpQwen3VLProcessor

    def clip_span(self, data: Mapping[str, Any], frames: int, rows: int, columns: int) -> SpanLayout:
        tokenizer = cached_tokenizer_from_config(self.eadp_model_config)
        return clip_span(self.config, tokenizer, data, frames, rows, columns)
