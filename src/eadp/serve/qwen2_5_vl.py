"""Qwen2.5-VL in vLLM."""

from __future__ import annotations

from eadp.models.qwen import Qwen2_5_VLGeometry
from eadp.serve.compat import (
    MULTIMODAL_REGISTRY,
    Qwen2_5_VLDummyInputsBuilder,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLMultiModalProcessor,
    Qwen2_5_VLProcessingInfo,
)
from eadp.serve.qwen_base import ImagesOnlyInfo, QwenPruningModel, QwenPruningProcessor


class EadpQwen2_5_VLProcessingInfo(ImagesOnlyInfo, Qwen2_5_VLProcessingInfo):
    """vLLM's processing info of Qwen2.5-VL, without videos."""


class EadpQwen2_5_VLProcessor(QwenPruningProcessor, Qwen2_5_VLMultiModalProcessor):
    """vLLM's processor of Qwen2.5-VL, with shortened prompts."""


@MULTIMODAL_REGISTRY.register_processor(
    EadpQwen2_5_VLProcessor, info=EadpQwen2_5_VLProcessingInfo, dummy_inputs=Qwen2_5_VLDummyInputsBuilder
)
class EadpQwen2_5_VLForConditionalGeneration(QwenPruningModel, Qwen2_5_VLForConditionalGeneration):
    """vLLM's model of Qwen2.5-VL, with pruned images."""

    geometry_class = Qwen2_5_VLGeometry
    processor = EadpQwen2_5_VLProcessor
