"""LLaVA-NeXT in vLLM."""

from __future__ import annotations

from eadp.models.llava_next import LlavaNextGeometry
from eadp.serve.anyres import AnyResPruningModel, AnyResPruningProcessor
from eadp.serve.compat import (
    MULTIMODAL_REGISTRY,
    LlavaDummyInputsBuilder,
    LlavaNextForConditionalGeneration,
    LlavaNextMultiModalProcessor,
    LlavaNextProcessingInfo,
)
from eadp.serve.llava_base import ClipTowerModel


class EadpLlavaNextProcessor(AnyResPruningProcessor, LlavaNextMultiModalProcessor):
    """vLLM's processor of LLaVA-NeXT, with shortened prompts."""


@MULTIMODAL_REGISTRY.register_processor(
    EadpLlavaNextProcessor, info=LlavaNextProcessingInfo, dummy_inputs=LlavaDummyInputsBuilder
)
class EadpLlavaNextForConditionalGeneration(AnyResPruningModel, ClipTowerModel, LlavaNextForConditionalGeneration):
    """vLLM's model of LLaVA-NeXT, with pruned images."""

    geometry_class = LlavaNextGeometry
    processor = EadpLlavaNextProcessor
