"""LLaVA-NeXT in vLLM. Newlines all go or all stay: which rows lose all their tokens, the engine would hear too late."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
from transformers.models.llava_next.modeling_llava_next import LlavaNextModel, get_anyres_image_grid_shape
from vllm.model_executor.models.llava import LlavaDummyInputsBuilder
from vllm.model_executor.models.llava_next import (
    LlavaNextForConditionalGeneration,
    LlavaNextMultiModalProcessor,
    LlavaNextProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from eadp.models.llava_next import LlavaNext
from eadp.serve.clip import ClipModel
from eadp.serve.features import Look
from eadp.serve.processing import PruningProcessor
from eadp.serve.pruning import Item


class EadpLlavaNextProcessor(PruningProcessor, LlavaNextMultiModalProcessor):
    positions = ("renumber",)

    def _newlines(self, mm_items: Any, index: int) -> int:
        """One a row of the joined crops, as the stock info counts them."""
        config, vision = self.info.get_hf_config(), self.info.get_vision_encoder_info()
        size = mm_items["image"].get_image_size(index)
        rows, columns = get_anyres_image_grid_shape(
            (size.height, size.width), config.image_grid_pinpoints, vision.get_image_size()
        )
        _, newlines = self.info._get_num_unpadded_features(
            original_height=size.height,
            original_width=size.width,
            npatches=vision.get_patch_grid_length(),
            num_patch_height=rows,
            num_patch_width=columns,
        )
        return newlines


@MULTIMODAL_REGISTRY.register_processor(
    EadpLlavaNextProcessor, info=LlavaNextProcessingInfo, dummy_inputs=LlavaDummyInputsBuilder
)
class EadpLlavaNextForConditionalGeneration(ClipModel, LlavaNextForConditionalGeneration):
    processor = EadpLlavaNextProcessor

    def items(self, batch: dict[str, Any]) -> list[Item]:
        sizes = torch.as_tensor(batch["image_sizes"]).cpu().view(-1, 2)
        # Beside an image of more crops, the processor fills up with black ones.
        return [
            {"pixel_values": crops[: 1 + _crops(self.config, size.tolist())], "image_sizes": size}
            for crops, size in zip(batch["pixel_values"], sizes, strict=True)
        ]

    def tokens_of(self, item: Item) -> int:
        vision = self.config.vision_config
        return len(item["pixel_values"]) * (vision.image_size // vision.patch_size) ** 2

    def look(self, items: Sequence[Item], layers: Sequence[int], tower_rows: bool) -> list[Look]:
        crops = [item["pixel_values"] for item in items]
        output = self.seen(torch.cat(crops), layers)
        features = self.multi_modal_projector(output.cells).split([len(each) for each in crops])
        sizes = torch.stack([item["image_sizes"] for item in items])
        rows = [
            self._merge_image_patch_embeddings(size, each, strategy="spatial_unpad")
            for size, each in zip(sizes, features, strict=True)
        ]
        # What stock transformers does to features, done to numbers, says where each of them went.
        packing = partial(cast(Any, LlavaNextModel).pack_image_features, SimpleNamespace(config=self.config))
        lengths, parts = [len(each) for each in rows], {"pack_image_features": packing}
        pictures = self.pictures(LlavaNext, output, lengths, tower_rows, parts, image_sizes=sizes)
        return [Look(picture, each, each.shape[-1]) for picture, each in zip(pictures, rows, strict=True)]


def _crops(config: Any, size: list[int]) -> int:
    """How many crops of an image there are beside the whole of it."""
    rows, columns = get_anyres_image_grid_shape(size, config.image_grid_pinpoints, config.vision_config.image_size)
    return rows * columns
