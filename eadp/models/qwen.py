"""Qwen2.5-VL and Qwen3-VL: a grid of merged patches for each image, and for each pair of frames of a clip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import get_vision_window_index

from eadp.models.family import Family, Picture, Prompt, Seen


class Qwen2_5_VL(Family):
    types = ("qwen2_5_vl",)
    tower_name = "visual"
    modalities = ("image", "video")
    mrope = True
    # The stock model would count a new image's tokens as if they were text.
    continues_with_images = False

    def pictures(self, seen: Seen, output: Any, prompt: Prompt) -> list[Picture]:
        merge = self.config.vision_config.spatial_merge_size
        grids = seen.arguments[f"{seen.modality}_grid_thw"].tolist()
        return [Picture.plain([(rows // merge, columns // merge)] * frames) for frames, rows, columns in grids]

    def tower_tokens(self, seen: Seen, pictures: Sequence[Picture], rows: Tensor) -> list[Tensor]:
        merged = rows[0].unflatten(0, (-1, self.config.vision_config.spatial_merge_size**2)).mean(1)
        return list(self._unwindowed(seen, merged).split([len(picture) for picture in pictures]))

    def _unwindowed(self, seen: Seen, merged: Tensor) -> Tensor:
        """The tower runs window by window; its output, like the grids, row by row."""
        vision = self.config.vision_config
        order, _ = get_vision_window_index(
            seen.arguments[f"{seen.modality}_grid_thw"],
            spatial_merge_size=vision.spatial_merge_size,
            window_size=vision.window_size,
            patch_size=vision.patch_size,
        )
        return merged[order.argsort().to(merged.device)]


class Qwen3VL(Qwen2_5_VL):
    """Its DeepStack features, added again in the first layers, are shortened with the tokens."""

    types = ("qwen3_vl",)

    def _unwindowed(self, seen: Seen, merged: Tensor) -> Tensor:
        return merged
