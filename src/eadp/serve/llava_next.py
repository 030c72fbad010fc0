"""LLaVA-NeXT in vLLM."""

from __future__ import annotations

from transformers.models.llava_next.modeling_llava_next import LlavaNextModel
from vllm.model_executor.models.llava import LlavaDummyInputsBuilder
from vllm.model_executor.models.llava_next import (
    LlavaNextForConditionalGeneration,
    LlavaNextMultiModalProcessor,
    LlavaNextProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from eadp.models.llava_next import LlavaNext
from eadp.serve.anyres import AnyResModel, AnyResProcessor
from eadp.serve.towers import ClipModel


class EadpLlavaNextProcessor(AnyResProcessor, LlavaNextMultiModalProcessor):
    pass


@MULTIMODAL_REGISTRY.register_processor(
    EadpLlavaNextProcessor, info=LlavaNextProcessingInfo, dummy_inputs=LlavaDummyInputsBuilder
)
class EadpLlavaNextForConditionalGeneration(AnyResModel, ClipModel, LlavaNextForConditionalGeneration):
    kind = LlavaNext
    processor = EadpLlavaNextProcessor
    transformers_model = LlavaNextModel
