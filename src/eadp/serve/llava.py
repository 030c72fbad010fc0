"""LLaVA-1.5 in vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm.model_executor.models.llava import (
    LlavaDummyInputsBuilder,
    LlavaForConditionalGeneration,
    LlavaMultiModalProcessor,
    LlavaProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from eadp.models.llava import LlavaGeometry
from eadp.serve.features import Look
from eadp.serve.processing import PruningProcessor
from eadp.serve.pruning import Item
from eadp.serve.towers import ClipModel


class EadpLlavaProcessor(PruningProcessor, LlavaMultiModalProcessor):
    positions = ("renumber",)


@MULTIMODAL_REGISTRY.register_processor(
    EadpLlavaProcessor, info=LlavaProcessingInfo, dummy_inputs=LlavaDummyInputsBuilder
)
class EadpLlavaForConditionalGeneration(ClipModel, LlavaForConditionalGeneration):
    geometry_class = LlavaGeometry
    processor = EadpLlavaProcessor

    def items(self, batch: dict[str, Any]) -> list[Item]:
        return [{"pixel_values": pixels} for pixels in batch["pixel_values"]]

    def tokens_of(self, item: Item) -> int:
        vision = self.config.vision_config
        return (vision.image_size // vision.patch_size) ** 2

    def look(self, items: Sequence[Item], layers: Sequence[int], tower_rows: bool) -> list[Look]:
        output = self.seen(torch.stack([item["pixel_values"] for item in items]), layers)
        rows = self.multi_modal_projector(output.cells)
        images = self.encoded_images(output, [len(each) for each in rows], tower_rows)
        return [Look(image, each, each.shape[-1]) for image, each in zip(images, rows, strict=True)]
