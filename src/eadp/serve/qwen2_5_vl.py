"""Qwen2.5-VL in vLLM."""

from __future__ import annotations

from vllm.model_executor.models.qwen2_5_vl import (
    Qwen2_5_VLDummyInputsBuilder,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLMultiModalProcessor,
    Qwen2_5_VLProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from eadp.models.qwen import Qwen2_5_VLGeometry
from eadp.serve.grids import GridModel, GridProcessor, ImagesOnly


class EadpQwen2_5_VLProcessingInfo(ImagesOnly, Qwen2_5_VLProcessingInfo):
    pass


class EadpQwen2_5_VLProcessor(GridProcessor, Qwen2_5_VLMultiModalProcessor):
    pass


@MULTIMODAL_REGISTRY.register_processor(
    EadpQwen2_5_VLProcessor, info=EadpQwen2_5_VLProcessingInfo, dummy_inputs=Qwen2_5_VLDummyInputsBuilder
)
class EadpQwen2_5_VLForConditionalGeneration(GridModel, Qwen2_5_VLForConditionalGeneration):
    geometry_class = Qwen2_5_VLGeometry
    processor = EadpQwen2_5_VLProcessor
