"""LLaVA-1.5 in vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from eadp.models.llava import LlavaGeometry
from eadp.serve.compat import (
    MULTIMODAL_REGISTRY,
    LlavaDummyInputsBuilder,
    LlavaForConditionalGeneration,
    LlavaMultiModalProcessor,
    LlavaProcessingInfo,
)
from eadp.serve.features import EncodedFeatures
from eadp.serve.llava_base import ClipTowerModel
from eadp.serve.processing import PruningProcessor
from eadp.serve.pruning import Item


class EadpLlavaProcessor(PruningProcessor, LlavaMultiModalProcessor):
    """vLLM's processor of LLaVA-1.5, with shortened prompts."""

    positions = ("renumber",)


@MULTIMODAL_REGISTRY.register_processor(
    EadpLlavaProcessor, info=LlavaProcessingInfo, dummy_inputs=LlavaDummyInputsBuilder
)
class EadpLlavaForConditionalGeneration(ClipTowerModel, LlavaForConditionalGeneration):
    """vLLM's model of LLaVA-1.5, with pruned images."""

    geometry_class = LlavaGeometry
    processor = EadpLlavaProcessor

    def split_batch(self, batch: dict[str, Any]) -> list[Item]:
        return [{"pixel_values": pixels} for pixels in batch["pixel_values"]]

    def count_tower_tokens(self, item: Item) -> int:
        vision = self.config.vision_config
        return (vision.image_size // vision.patch_size) ** 2

    def encode_items(
        self, items: Sequence[Item], layers: Sequence[int], outputs: Sequence[str]
    ) -> list[EncodedFeatures]:
        pixels = torch.stack([item["pixel_values"] for item in items])
        output = self.run_tower(pixels, layers)
        rows = self.multi_modal_projector(output.cells)
        images = self.build_encoded_images(output, [len(each) for each in rows], outputs, pixels=pixels)
        return [EncodedFeatures(image, each, each.shape[-1]) for image, each in zip(images, rows, strict=True)]
