"""Qwen3-VL in vLLM. Its rows carry the DeepStack levels beside the feature, so that pruning rows prunes all of them."""

from __future__ import annotations

from vllm.model_executor.models.qwen3_vl import (
    Qwen3VLDummyInputsBuilder,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMultiModalProcessor,
    Qwen3VLProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from eadp.models.qwen import Qwen3VLGeometry
from eadp.serve.grids import GridModel, GridProcessor, ImagesOnly


class EadpQwen3VLProcessingInfo(ImagesOnly, Qwen3VLProcessingInfo):
    pass


class EadpQwen3VLProcessor(GridProcessor, Qwen3VLMultiModalProcessor):
    pass


@MULTIMODAL_REGISTRY.register_processor(
    EadpQwen3VLProcessor, info=EadpQwen3VLProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class EadpQwen3VLForConditionalGeneration(GridModel, Qwen3VLForConditionalGeneration):
    geometry_class = Qwen3VLGeometry
    processor = EadpQwen3VLProcessor
