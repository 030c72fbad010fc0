"""Qwen3-VL in vLLM. Its rows hold the DeepStack levels after the feature, so that pruning rows prunes all of them."""

from __future__ import annotations

from eadp.models.qwen import Qwen3VLGeometry
from eadp.serve.compat import (
    MULTIMODAL_REGISTRY,
    Qwen3VLDummyInputsBuilder,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMultiModalProcessor,
    Qwen3VLProcessingInfo,
)
from eadp.serve.qwen_base import ImagesOnlyInfo, QwenPruningModel, QwenPruningProcessor


class EadpQwen3VLProcessingInfo(ImagesOnlyInfo, Qwen3VLProcessingInfo):
    """vLLM's processing info of Qwen3-VL, without videos."""


class EadpQwen3VLProcessor(QwenPruningProcessor, Qwen3VLMultiModalProcessor):
    """vLLM's processor of Qwen3-VL, with shortened prompts."""


@MULTIMODAL_REGISTRY.register_processor(
    EadpQwen3VLProcessor, info=EadpQwen3VLProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class EadpQwen3VLForConditionalGeneration(QwenPruningModel, Qwen3VLForConditionalGeneration):
    """vLLM's model of Qwen3-VL, with pruned images."""

    geometry_class = Qwen3VLGeometry
    processor = EadpQwen3VLProcessor
