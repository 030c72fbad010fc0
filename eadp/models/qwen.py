"""Qwen2.5-VL and Qwen3-VL: a grid of merged patches for each image, and for each pair of frames of a clip."""

from __future__ import annotations

from typing import Any

from eadp.models.family import Family, Picture, Prompt, Seen


class Qwen2_5_VL(Family):
    types = ("qwen2_5_vl",)
    modalities = ("image", "video")
    mrope = True
    # The stock model would count a new image's tokens as if they were text.
    continues_with_images = False

    def pictures(self, seen: Seen, output: Any, prompt: Prompt) -> list[Picture]:
        merge = self.config.vision_config.spatial_merge_size
        grids = seen.listed(f"{seen.modality}_grid_thw")
        return [Picture.plain([(rows // merge, columns // merge)] * frames) for frames, rows, columns in grids]


class Qwen3VL(Qwen2_5_VL):
    """Its DeepStack features, added again in the first layers, are shortened with the tokens."""

    types = ("qwen3_vl",)
