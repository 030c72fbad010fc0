"""Gemma3 and PaliGemma: a fixed number of tokens an image, attention in both directions among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from eadp.core.types import Grid
from eadp.models.family import Family, Picture, Prompt, Seen, TowerRows, averaged, square
from eadp.models.overrides import Overrides
from eadp.models.views import resized


class PaliGemma(Family):
    types = ("paligemma",)
    makes_masks = True
    # The mask that the base model builds counts columns of the cache, which are fewer than it thinks.
    continues_with_images = False

    def pictures(self, seen: Seen, output: Any, prompt: Prompt) -> list[Picture]:
        vision = self.config.vision_config
        side, grid = vision.image_size // vision.patch_size, square(seen.lengths[0], "the image")
        return [Picture.plain([grid], arrange=lambda rows: averaged(rows, side // grid[0])[0]) for _ in seen.lengths]

    def tower_rows(self, seen: Seen, output: Any, pictures: Sequence[Picture]) -> Sequence[TowerRows | None]:
        project = self.base.get_submodule("multi_modal_projector")
        return [TowerRows(rows, None, project) for rows in output.last_hidden_state]

    def encode(self, seen: Seen, view: Tensor, grid: Grid) -> list[Tensor]:
        return self._encode(view, grid, 1)

    def _encode(self, view: Tensor, grid: Grid, pooled: int) -> list[Tensor]:
        patch = self.config.vision_config.patch_size * pooled
        pixels = resized(view, grid[0] * patch, grid[1] * patch)[None]
        return [self.stock_features(pixels, interpolate_pos_encoding=True).pooler_output[0]]


class Gemma3(PaliGemma):
    """Its projector averages patches on a square grid whose side is an attribute of it."""

    types = ("gemma3",)
    square_only = True

    def tower_rows(self, seen: Seen, output: Any, pictures: Sequence[Picture]) -> Sequence[TowerRows | None]:
        return [None] * len(pictures)

    def encode(self, seen: Seen, view: Tensor, grid: Grid) -> list[Tensor]:
        projector: Any = self.base.get_submodule("multi_modal_projector")
        smaller = Overrides()
        smaller.override(projector, "patches_per_image", grid[0] * projector.kernel_size)
        try:
            return self._encode(view, grid, projector.kernel_size)
        finally:
            smaller.undo()
