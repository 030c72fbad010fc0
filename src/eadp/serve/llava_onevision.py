"""LLaVA-OneVision and LLaVA-Video in vLLM: AnyRes crops, and clips of pooled frames.

LLaVA-Video is LLaVA-OneVision's architecture with another pooling and other newlines: see `eadp.models.llava_video`.

vLLM cuts every image into crops. transformers does so too, except for several images in one list per prompt
(`[[a, b]]`): it does not cut these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eadp.models import llava_video
from eadp.models.llava_onevision import LlavaOnevisionGeometry
from eadp.serve.anyres import AnyResPruningModel, AnyResPruningProcessor
from eadp.serve.compat import (
    MULTIMODAL_REGISTRY,
    LlavaOnevisionDummyInputsBuilder,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionMultiModalProcessor,
    LlavaOnevisionProcessingInfo,
)
from eadp.serve.features import EncodedFeatures
from eadp.serve.llava_base import SiglipTowerModel
from eadp.serve.pruning import Item
from eadp.serve.request import SETTINGS_KEY

VIDEO_PIXELS = "pixel_values_videos"
ASPECT_RATIO = "anyres_max_9"
"""The only `vision_aspect_ratio` that vLLM implements."""


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
    def from_config(cls, config: Any) -> ClipLayout:
        """Read the layout from the model's configuration, which holds the server's settings."""
        vision = config.vision_config
        if getattr(config, SETTINGS_KEY, {}).get("llava_video", False):
            return cls(llava_video.frame_side(vision), newline_per_row=True)
        return cls(math.ceil(vision.image_size // vision.patch_size / 2), newline_per_row=False)

    def count_newlines(self, frames: int) -> int:
        """Return the number of newline tokens of a clip."""
        return frames * self.side if self.newline_per_row else 1

    def count_placeholders(self, frames: int) -> int:
        """Return the number of placeholders of an unpruned clip."""
        return frames * self.side**2 + self.count_newlines(frames)


class EadpLlavaOnevisionProcessingInfo(LlavaOnevisionProcessingInfo):
    """vLLM's processing info of LLaVA-OneVision and LLaVA-Video, with the number of tokens of a LLaVA-Video clip."""

    def get_num_video_tokens(self, *, image_width: int, image_height: int, num_frames: int) -> int:
        return ClipLayout.from_config(self.get_hf_config()).count_placeholders(num_frames)


class EadpLlavaOnevisionProcessor(AnyResPruningProcessor, LlavaOnevisionMultiModalProcessor):
    """vLLM's processor of LLaVA-OneVision and LLaVA-Video, with shortened prompts."""

    modalities = ("image", "video")

    def _count_newlines(self, mm_items: Any, modality: str, index: int) -> int:
        if modality == "image":
            return super()._count_newlines(mm_items, modality, index)
        return ClipLayout.from_config(self.info.get_hf_config()).count_newlines(
            mm_items[modality].get_num_frames(index)
        )


@MULTIMODAL_REGISTRY.register_processor(
    EadpLlavaOnevisionProcessor, info=EadpLlavaOnevisionProcessingInfo, dummy_inputs=LlavaOnevisionDummyInputsBuilder
)
class EadpLlavaOnevisionForConditionalGeneration(
    AnyResPruningModel, SiglipTowerModel, LlavaOnevisionForConditionalGeneration
):
    """vLLM's model of LLaVA-OneVision and LLaVA-Video, with pruned images and clips."""

    geometry_class = LlavaOnevisionGeometry
    processor = EadpLlavaOnevisionProcessor

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        if self.config.vision_aspect_ratio != ASPECT_RATIO:
            raise ValueError(
                f'vLLM always scales crops down as with vision_aspect_ratio="{ASPECT_RATIO}", but this checkpoint has '
                f'"{self.config.vision_aspect_ratio}": its answers would differ from those of transformers'
            )

    def split_batch(self, batch: dict[str, Any]) -> list[Item]:
        if VIDEO_PIXELS in batch:
            return [{VIDEO_PIXELS: frames} for frames in batch[VIDEO_PIXELS]]
        return super().split_batch(batch)

    def count_tower_tokens(self, item: Item) -> int:
        return super().count_tower_tokens({"pixel_values": item[VIDEO_PIXELS]} if VIDEO_PIXELS in item else item)

    def encode_items(
        self, items: Sequence[Item], layers: Sequence[int], outputs: Sequence[str]
    ) -> list[EncodedFeatures]:
        if VIDEO_PIXELS in items[0]:
            return [self._encode_clip(item[VIDEO_PIXELS], layers, outputs) for item in items]
        return super().encode_items(items, layers, outputs)

    def _encode_clip(self, frames: Tensor, layers: Sequence[int], outputs: Sequence[str]) -> EncodedFeatures:
        """Encode a clip of F×3×h×w frames."""
        output = self.run_tower(frames, layers)
        projected = self.multi_modal_projector(output.cells)
        layout = ClipLayout.from_config(self.config)
        if layout.newline_per_row:
            pooled = llava_video.average_pool(projected).flatten(0, 1)
            rows = llava_video.add_newlines(pooled[None], layout.side, self.image_newline)[0]
        else:
            rows = torch.cat([self.apply_pooling(projected).flatten(0, 1), self.image_newline[None]])
        (clip,) = self.build_encoded_images(output, [len(rows)], outputs, "video")
        return EncodedFeatures(clip, rows, rows.shape[-1])

    def pack_crops(self, size: Tensor, features: Tensor) -> Tensor:
        return self._merge_image_patch_embeddings(
            size, features, image_newline=self.image_newline, strategy="spatial_unpad"
        )
