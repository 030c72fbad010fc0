"""Qwen2.5-VL and Qwen3-VL: a grid of merged patches per image, and per pair of frames of a clip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from eadp.compat import get_vision_window_index
from eadp.core.types import Grid
from eadp.models.adapter import FamilyAdapter
from eadp.models.geometry import Arrange, FamilyGeometry
from eadp.models.layout import ImageLayout, Placeholders
from eadp.models.pixels import patches_from_pixels, pixels_from_patches, resize
from eadp.models.vision_call import TowerRows, VisionCall


class Qwen2_5_VLGeometry(FamilyGeometry):
    """One sequence of the tower for all images of a call, ordered by attention windows."""

    model_types = ("qwen2_5_vl",)
    modalities = ("image", "video")
    mrope = True

    @property
    def patches_per_token(self) -> int:
        """The number of patches that the merger joins to one token."""
        return self.config.vision_config.spatial_merge_size**2

    def layouts(self, call: VisionCall, placeholders: Placeholders) -> list[ImageLayout]:
        merge = self.config.vision_config.spatial_merge_size
        return [
            ImageLayout.contiguous([(rows // merge, columns // merge)] * frames, is_clip=call.modality == "video")
            for frames, rows, columns in self._patch_grids(call)
        ]

    def join_tokens(
        self, call: VisionCall, layouts: Sequence[ImageLayout], cells: Tensor, arrange: Arrange | None = None
    ) -> Tensor:
        return self._row_by_row(call, cells[0].unflatten(0, (-1, self.patches_per_token)).mean(1))

    def tower_rows(self, call: VisionCall, layouts: Sequence[ImageLayout], patches: Tensor) -> list[TowerRows]:
        """The tokens of each image as the merger takes them: their patches concatenated.

        Args:
            call: The call of the vision side.
            layouts: The layouts of its images.
            patches: P×w, the states of the tower before its merger.
        """
        rows = patches.unflatten(0, (-1, self.patches_per_token)).flatten(1)
        return [TowerRows(each) for each in self._row_by_row(call, rows).split([len(layout) for layout in layouts])]

    def merger_input(self, rows: Tensor) -> Tensor:
        """Rows of `tower_rows`, K×w, as the patches that the merger takes."""
        return rows.unflatten(1, (self.patches_per_token, -1)).flatten(0, 1)

    def block_pixels(self, call: VisionCall, layouts: Sequence[ImageLayout]) -> list[list[Tensor]]:
        vision, pixels, grids = self.config.vision_config, cast(Tensor, call.pixels), self._patch_grids(call)
        parts = pixels.split([frames * rows * columns for frames, rows, columns in grids])
        shape = (vision.spatial_merge_size, vision.patch_size, vision.temporal_patch_size)
        return [
            list(pixels_from_patches(part, frames, (rows, columns), *shape))
            for part, (frames, rows, columns) in zip(parts, grids, strict=True)
        ]

    def _patch_grids(self, call: VisionCall) -> list[list[int]]:
        """Frames, rows and columns of patches of each image or clip."""
        return call.listed(f"{call.modality}_grid_thw")

    def _row_by_row(self, call: VisionCall, merged: Tensor) -> Tensor:
        """Undo the window order of the tower. Its output, like the grids, is row by row."""
        vision = self.config.vision_config
        order, _ = get_vision_window_index(
            torch.as_tensor(call.arguments[f"{call.modality}_grid_thw"]),
            spatial_merge_size=vision.spatial_merge_size,
            window_size=vision.window_size,
            patch_size=vision.patch_size,
        )
        return merged[order.argsort().to(merged.device)]


class Qwen3VLGeometry(Qwen2_5_VLGeometry):
    """Its tower has no windows."""

    model_types = ("qwen3_vl",)

    def _row_by_row(self, call: VisionCall, merged: Tensor) -> Tensor:
        return merged


class Qwen2_5_VLAdapter(FamilyAdapter):
    """Qwen2.5-VL on its modules."""

    geometry_class = Qwen2_5_VLGeometry
    geometry: Qwen2_5_VLGeometry
    tower_name = "visual"
    # The unpruned model would count a new image's tokens as if they were text.
    continues_with_images = False

    def tower_cells(self, call: VisionCall, output: Any) -> Tensor:
        return output.last_hidden_state[None]

    def tower_rows(self, call: VisionCall, output: Any, layouts: Sequence[ImageLayout]) -> Sequence[TowerRows | None]:
        return self.geometry.tower_rows(call, layouts, output.last_hidden_state)

    def project(self, rows: Tensor) -> Tensor:
        return self.tower.get_submodule("merger")(self.geometry.merger_input(rows))

    def encode(self, call: VisionCall, pixels: Tensor, grid: Grid) -> list[Tensor]:
        vision = self.config.vision_config
        rows, columns = (side * vision.spatial_merge_size for side in grid)
        resized = resize(pixels, rows * vision.patch_size, columns * vision.patch_size)
        patches = patches_from_pixels(resized, vision.spatial_merge_size, vision.patch_size)
        output = self.image_features(patches, image_grid_thw=torch.tensor([[1, rows, columns]], device=pixels.device))
        layers = getattr(output, "deepstack_features", None) or []
        return [rows[0] for rows in (output.pooler_output, *layers)]


class Qwen3VLAdapter(Qwen2_5_VLAdapter):
    """Qwen3-VL on its modules. The runtime shortens its DeepStack features together with the tokens."""

    geometry_class = Qwen3VLGeometry
