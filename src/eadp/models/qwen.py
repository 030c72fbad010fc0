"""Qwen2.5-VL and Qwen3-VL: a grid of merged patches for each image, and for each pair of frames of a clip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from eadp.compat import get_vision_window_index
from eadp.core.types import Grid
from eadp.models.family import Family, Picture, Prompt, Seen, TowerRows
from eadp.models.views import from_patches, resized, to_patches


class Qwen2_5_VL(Family):
    types = ("qwen2_5_vl",)
    tower_name = "visual"
    modalities = ("image", "video")
    mrope = True
    # The stock model would count a new image's tokens as if they were text.
    continues_with_images = False

    def pictures(self, seen: Seen, output: Any, prompt: Prompt) -> list[Picture]:
        merge = self.config.vision_config.spatial_merge_size
        grids = seen.listed(f"{seen.modality}_grid_thw")
        return [Picture.plain([(rows // merge, columns // merge)] * frames) for frames, rows, columns in grids]

    def tower_tokens(self, seen: Seen, pictures: Sequence[Picture], rows: Tensor) -> list[Tensor]:
        merged = rows[0].unflatten(0, (-1, self.config.vision_config.spatial_merge_size**2)).mean(1)
        return list(self._unwindowed(seen, merged).split([len(picture) for picture in pictures]))

    def tower_rows(self, seen: Seen, output: Any, pictures: Sequence[Picture]) -> Sequence[TowerRows | None]:
        """A token's patches side by side, as its merger takes them."""
        merger, patches = self.tower.get_submodule("merger"), self.config.vision_config.spatial_merge_size**2
        rows = self._unwindowed(seen, output.last_hidden_state.unflatten(0, (-1, patches)).flatten(1))

        def project(rows: Tensor) -> Tensor:
            return merger(rows.unflatten(1, (patches, -1)).flatten(0, 1))

        return [TowerRows(each, None, project) for each in rows.split([len(picture) for picture in pictures])]

    def views(self, seen: Seen, pictures: Sequence[Picture]) -> list[list[Tensor]]:
        vision, pixels = self.config.vision_config, cast(Tensor, seen.values)
        grids = seen.listed(f"{seen.modality}_grid_thw")
        parts = pixels.split([frames * rows * columns for frames, rows, columns in grids])
        shape = (vision.spatial_merge_size, vision.patch_size, vision.temporal_patch_size)
        return [
            list(from_patches(part, frames, (rows, columns), *shape))
            for part, (frames, rows, columns) in zip(parts, grids, strict=True)
        ]

    def encode(self, seen: Seen, view: Tensor, grid: Grid) -> list[Tensor]:
        vision = self.config.vision_config
        rows, columns = (side * vision.spatial_merge_size for side in grid)
        small = resized(view, rows * vision.patch_size, columns * vision.patch_size)
        patches = to_patches(small, vision.spatial_merge_size, vision.patch_size)
        output = self.stock_features(patches, image_grid_thw=torch.tensor([[1, rows, columns]], device=view.device))
        layers = getattr(output, "deepstack_features", None) or []
        return [rows[0] for rows in (output.pooler_output, *layers)]

    def _unwindowed(self, seen: Seen, merged: Tensor) -> Tensor:
        """The tower runs window by window; its output, like the grids, row by row."""
        vision = self.config.vision_config
        order, _ = get_vision_window_index(
            torch.as_tensor(seen.arguments[f"{seen.modality}_grid_thw"]),
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
