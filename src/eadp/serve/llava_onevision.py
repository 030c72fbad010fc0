"""LLaVA-OneVision and LLaVA-Video in vLLM: AnyRes crops, and clips of pooled frames.

LLaVA-Video is LLaVA-OneVision's architecture with another pooling and other newlines: see `eadp.models.llava_video`.

vLLM cuts every image into crops. transformers does so too, unless images come as one list per prompt (`[[a, b]]`): then
each of several images is one crop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.models.llava_onevision import (
    LlavaOnevisionDummyInputsBuilder,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionMultiModalProcessor,
    LlavaOnevisionProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from eadp.models import llava_video
from eadp.models.llava_onevision import LlavaOnevisionGeometry
from eadp.serve.anyres import AnyResModel, AnyResProcessor
from eadp.serve.features import Look
from eadp.serve.pruning import Item
from eadp.serve.request import KEY
from eadp.serve.towers import SiglipModel

CLIPS = "pixel_values_videos"
ASPECT_RATIO = "anyres_max_9"


@dataclass(frozen=True)
class ClipLayout:
    """How the tokens of a clip lie in the prompt.

    Attributes:
        side: Rows and columns of a frame's tokens, after pooling.
        newline_per_row: Whether a newline ends each row of each frame (LLaVA-Video), or only the clip (OneVision).
    """

    side: int
    newline_per_row: bool

    @classmethod
    def of(cls, config: Any) -> ClipLayout:
        """The layout of a model, from its configuration with the server's settings."""
        vision = config.vision_config
        if getattr(config, KEY, {}).get("llava_video", False):
            return cls(llava_video.frame_side(vision), newline_per_row=True)
        return cls(math.ceil(vision.image_size // vision.patch_size / 2), newline_per_row=False)

    def newlines(self, frames: int) -> int:
        return frames * self.side if self.newline_per_row else 1

    def length(self, frames: int) -> int:
        """The number of placeholders of an unpruned clip."""
        return frames * self.side**2 + self.newlines(frames)


class EadpLlavaOnevisionProcessingInfo(LlavaOnevisionProcessingInfo):
    def get_num_video_tokens(self, *, image_width: int, image_height: int, num_frames: int) -> int:
        return ClipLayout.of(self.get_hf_config()).length(num_frames)


class EadpLlavaOnevisionProcessor(AnyResProcessor, LlavaOnevisionMultiModalProcessor):
    modalities = ("image", "video")

    def _newlines(self, mm_items: Any, modality: str, index: int) -> int:
        if modality == "image":
            return super()._newlines(mm_items, modality, index)
        return ClipLayout.of(self.info.get_hf_config()).newlines(mm_items[modality].get_num_frames(index))


@MULTIMODAL_REGISTRY.register_processor(
    EadpLlavaOnevisionProcessor, info=EadpLlavaOnevisionProcessingInfo, dummy_inputs=LlavaOnevisionDummyInputsBuilder
)
class EadpLlavaOnevisionForConditionalGeneration(AnyResModel, SiglipModel, LlavaOnevisionForConditionalGeneration):
    geometry_class = LlavaOnevisionGeometry
    processor = EadpLlavaOnevisionProcessor

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        if self.config.vision_aspect_ratio != ASPECT_RATIO:
            raise ValueError(
                f'vLLM scales crops down as vision_aspect_ratio="{ASPECT_RATIO}" says, but this checkpoint has '
                f'"{self.config.vision_aspect_ratio}": its answers would differ from those of transformers'
            )

    def items(self, batch: dict[str, Any]) -> list[Item]:
        if CLIPS in batch:
            return [{CLIPS: frames} for frames in batch[CLIPS]]
        return super().items(batch)

    def tokens_of(self, item: Item) -> int:
        return super().tokens_of({"pixel_values": item[CLIPS]} if CLIPS in item else item)

    def look(self, items: Sequence[Item], layers: Sequence[int], tower_rows: bool) -> list[Look]:
        if CLIPS in items[0]:
            return [self._look_at_clip(item[CLIPS], layers, tower_rows) for item in items]
        return super().look(items, layers, tower_rows)

    def _look_at_clip(self, frames: Tensor, layers: Sequence[int], tower_rows: bool) -> Look:
        """frames: F×3×h×w."""
        output = self.seen(frames, layers)
        projected = self.multi_modal_projector(output.cells)
        layout = ClipLayout.of(self.config)
        if layout.newline_per_row:
            pooled = llava_video.average_pool(projected).flatten(0, 1)
            rows = llava_video.add_newlines(pooled[None], layout.side, self.image_newline)[0]
        else:
            rows = torch.cat([self.apply_pooling(projected).flatten(0, 1), self.image_newline[None]])
        (clip,) = self.encoded_images(output, [len(rows)], tower_rows, "video")
        return Look(clip, rows, rows.shape[-1])

    def packed(self, size: Tensor, features: Tensor) -> Tensor:
        return self._merge_image_patch_embeddings(
            size, features, image_newline=self.image_newline, strategy="spatial_unpad"
        )
