"""Qwen2.5-VL in vLLM. The frames of a clip follow each other without text; their time is a coordinate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from eadp.models.qwen import Qwen2_5_VLGeometry
from eadp.serve.compat import (
    MULTIMODAL_REGISTRY,
    Qwen2_5_VLDummyInputsBuilder,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLMultiModalProcessor,
    Qwen2_5_VLProcessingInfo,
)
from eadp.serve.mrope import SpanLayout
from eadp.serve.qwen_base import QwenPruningModel, QwenPruningProcessor


def clip_span(config: Any, data: Mapping[str, Any], frames: int, rows: int, columns: int) -> SpanLayout:
    """Return the rows of an unpruned clip. Its time coordinates are rounded as in transformers."""
    seconds = torch.as_tensor(data["second_per_grid_ts"]).flatten()[0]
    times = torch.arange(frames) * (config.vision_config.tokens_per_second * seconds)
    return SpanLayout.from_grid(times.long().tolist(), rows, columns)


class EadpQwen2_5_VLProcessor(QwenPruningProcessor, Qwen2_5_VLMultiModalProcessor):
    """vLLM's processor of Qwen2.5-VL, with shortened prompts."""

    def clip_span(self, data: Mapping[str, Any], frames: int, rows: int, columns: int) -> SpanLayout:
        return clip_span(self.info.get_hf_config(), data, frames, rows, columns)


@MULTIMODAL_REGISTRY.register_processor(
    EadpQwen2_5_VLProcessor, info=Qwen2_5_VLProcessingInfo, dummy_inputs=Qwen2_5_VLDummyInputsBuilder
)
class EadpQwen2_5_VLForConditionalGeneration(QwenPruningModel, Qwen2_5_VLForConditionalGeneration):
    """vLLM's model of Qwen2.5-VL, with pruned images and clips."""

    geometry_class = Qwen2_5_VLGeometry
    processor = EadpQwen2_5_VLProcessor

    def clip_span(self, data: Mapping[str, Any], frames: int, rows: int, columns: int) -> SpanLayout:
        return clip_span(self.config, data, frames, rows, columns)
