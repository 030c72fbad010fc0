"""Gemma3 and PaliGemma: a fixed number of tokens per image, which attend to each other in both directions."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from eadp.core.types import Grid
from eadp.models.adapter import FamilyAdapter
from eadp.models.geometry import FamilyGeometry
from eadp.models.layout import ImageLayout, Placeholders, Pooling, square_grid
from eadp.models.pixels import resize
from eadp.models.vision_call import TowerRows, VisionCall


class PaliGemmaGeometry(FamilyGeometry):
    """One square grid per image."""

    model_types = ("paligemma",)
    answer_type: ClassVar[int | None] = 1

    def layouts(self, call: VisionCall, placeholders: Placeholders) -> list[ImageLayout]:
        vision, grid = self.config.vision_config, square_grid(call.lengths[0], "the image")
        pooling = Pooling("average", vision.image_size // vision.patch_size // grid[0])
        return [ImageLayout.contiguous([grid], pooling=pooling) for _ in call.lengths]


class Gemma3Geometry(PaliGemmaGeometry):
    """One square grid per image, of patches that the projector averages."""

    model_types = ("gemma3",)
    square_grids_only = True
    answer_type = None  # Its token types mark images.


class PaliGemmaAdapter(FamilyAdapter):
    """PaliGemma on its modules."""

    geometry_class = PaliGemmaGeometry
    builds_masks = True
    # The mask that the base model builds counts columns of the cache, which are fewer than it assumes.
    continues_with_images = False

    def tower_rows(self, call: VisionCall, output: Any, layouts: Sequence[ImageLayout]) -> Sequence[TowerRows | None]:
        return [TowerRows(rows) for rows in output.last_hidden_state]

    def project(self, rows: Tensor) -> Tensor:
        return self.base.get_submodule("multi_modal_projector")(rows)

    def encode(self, call: VisionCall, pixels: Tensor, grid: Grid) -> list[Tensor]:
        return self._encode(pixels, grid, 1)

    def _encode(self, pixels: Tensor, grid: Grid, pooled: int) -> list[Tensor]:
        patch = self.config.vision_config.patch_size * pooled
        resized = resize(pixels, grid[0] * patch, grid[1] * patch)[None]
        return [self.image_features(resized, interpolate_pos_encoding=True).pooler_output[0]]


class Gemma3Adapter(PaliGemmaAdapter):
    """Gemma3 on its modules. Its projector averages patches on a square grid, whose side is one of its attributes."""

    geometry_class = Gemma3Geometry

    def tower_rows(self, call: VisionCall, output: Any, layouts: Sequence[ImageLayout]) -> Sequence[TowerRows | None]:
        return [None] * len(layouts)

    def encode(self, call: VisionCall, pixels: Tensor, grid: Grid) -> list[Tensor]:
        # Other threads use the model's own projector, so a copy of it gets the other side.
        base, projector = copy.copy(self.base), copy.copy(self.base.get_submodule("multi_modal_projector"))
        projector.patches_per_image = grid[0] * projector.kernel_size
        base._modules = {**base._modules, "multi_modal_projector": projector}
        return self.on(base)._encode(pixels, grid, projector.kernel_size)
