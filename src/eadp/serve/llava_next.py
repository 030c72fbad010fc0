"""LLaVA-NeXT in vLLM."""

from __future__ import annotations

from vllm.model_executor.models.llava import LlavaDummyInputsBuilder
from vllm.model_executor.models.llava_next import (
    LlavaNextForConditionalGeneration,
    LlavaNextMultiModalProcessor,
    LlavaNextProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from eadp.models.llava_next import LlavaNextGeometry
from eadp.serve.anyres import AnyResModel, AnyResProcessor
from eadp.serve.towers import ClipModel


class EadpLlavaNextProcessor(AnyResProcessor, LlavaNextMultiModalProcessor):
    pass


@MULTIMODAL_REGISTRY.register_processor(
    EadpLlavaNextProcessor, info=LlavaNextProcessingInfo, dummy_inputs=LlavaDummyInputsBuilder
)
class EadpLlavaNextForConditionalGeneration(AnyResModel, ClipModel, LlavaNextForConditionalGeneration):
    geometry_class = LlavaNextGeometry
    processor = EadpLlavaNextProcessor
