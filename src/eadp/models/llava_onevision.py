"""LLaVA-OneVision: AnyRes crops that are scaled down where there are many, and pooled frames.

LLaVA-Video is the same architecture with another pooling: see `eadp.models.llava_video`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from eadp.compat import get_anyres_image_grid_shape, unpad_image
from eadp.core.types import Grid
from eadp.models.anyres import NEWLINE, lined, picture, resampled
from eadp.models.family import Family, Picture, Prompt, Seen, TowerRows, square
from eadp.models.llava import encode, tower_rows, tower_states
from eadp.models.views import block_views, flat_crops


class LlavaOnevision(Family):
    types = ("llava_onevision",)
    modalities = ("image", "video")

    def pictures(self, seen: Seen, output: Any, prompt: Prompt) -> list[Picture]:
        states = tower_states(self.config, seen, output)
        return self._images(seen, states) if seen.modality == "image" else self._clips(seen, states)

    def _images(self, seen: Seen, states: Tensor) -> list[Picture]:
        vision = self.config.vision_config
        pictures = []
        for size, alone in zip(seen.listed("image_sizes"), self._alone(seen), strict=True):
            crops = (0, 0)
            if alone:
                crops = get_anyres_image_grid_shape(size, self.config.image_grid_pinpoints, vision.image_size)
            count = 1 + crops[0] * crops[1]
            pictures.append(self._image(seen, size, crops, states[:count]))
            states = states[count:]
        return pictures

    def _alone(self, seen: Seen) -> list[bool]:
        """Which images are cut into crops: those that are alone in their prompt."""
        if seen.arguments.get("batch_num_images") is None:
            return [True] * len(seen.lengths)
        return [number == 1 for number in seen.listed("batch_num_images") for _ in range(number)]

    def _image(self, seen: Seen, size: list[int], crops: tuple[int, int], states: Tensor) -> Picture:
        vision = self.config.vision_config
        side = vision.image_size // vision.patch_size
        numbers = torch.arange(len(states) * side**2, dtype=torch.float64).view(len(states), side**2, 1)
        packed = self._packed(seen, numbers, size, torch.tensor([float(NEWLINE)]))[:, 0]
        if torch.equal(packed, packed.round()):
            return picture(packed, side, crops, states)
        local = packed[side**2 :]
        rows = int((local == NEWLINE).sum())
        arrange = partial(self._packed, seen, size=size, newline=None)
        return resampled(side, rows, len(local) // rows - 1, states=states, arrange=arrange, crops=len(states))

    def _packed(self, seen: Seen, cells: Tensor, size: list[int], newline: Tensor | None) -> Tensor:
        """One image's crops×cells×d as the model packs them."""
        ratio = seen.arguments.get("vision_aspect_ratio") or self.config.vision_aspect_ratio
        (packed,), _ = self.base.pack_image_features([cells], [size], image_newline=newline, vision_aspect_ratio=ratio)
        return packed

    def _clips(self, seen: Seen, states: Tensor) -> list[Picture]:
        frames = seen.pixels[1]
        pooled = self.base.apply_pooling(torch.zeros(1, states.shape[1], 1)).shape[1]
        grid = square(pooled, "a frame")
        slots, newlines = lined(frames * grid[0], grid[1])
        if seen.lengths[0] == frames * pooled + 1:
            slots, newlines = torch.arange(frames * pooled), torch.full((frames * pooled,), frames * pooled)
        elif seen.lengths[0] != frames * (pooled + grid[0]):
            raise ValueError(
                f"{frames} frames of {grid[0]}×{grid[1]} tokens came as {seen.lengths[0]}: neither with one newline at "
                "the end nor with one after each row"
            )
        return [
            Picture(
                [grid] * frames,
                slots,
                seen.lengths[0],
                newlines,
                states=clip,
                arrange=lambda aligned: self.base.apply_pooling(aligned).flatten(0, 1),
                crops=frames,
            )
            for clip in states.split(frames)
        ]

    def tower_rows(self, seen: Seen, output: Any, pictures: Sequence[Picture]) -> Sequence[TowerRows | None]:
        """Clips are pooled, and many crops scaled down, behind the projector."""
        if seen.modality == "video":
            return [None] * len(pictures)
        return [
            None if picture.shown is None else rows
            for picture, rows in zip(pictures, tower_rows(self, seen, output, pictures), strict=True)
        ]

    def views(self, seen: Seen, pictures: Sequence[Picture]) -> list[list[Tensor]]:
        views, crops = [], flat_crops(cast(Tensor, seen.values), pictures)
        sizes = seen.listed("image_sizes") if seen.modality == "image" else [[]] * len(pictures)
        for each, part, size in zip(pictures, crops.split([each.crops for each in pictures]), sizes, strict=True):
            if len(each.grids) == each.crops or each.shown is not None:
                views += block_views(part, [each])
            else:
                views.append([part[0], self._joined(part[1:], size)])
        return views

    def _joined(self, crops: Tensor, size: list[int]) -> Tensor:
        """The image that local crops show together, 3×height×width, without its padding."""
        side = self.config.vision_config.image_size
        rows, columns = get_anyres_image_grid_shape(size, self.config.image_grid_pinpoints, side)
        joined = crops.unflatten(0, (rows, columns)).permute(2, 0, 3, 1, 4).flatten(3).flatten(1, 2)
        return unpad_image(joined, size)

    def encode(self, seen: Seen, view: Tensor, grid: Grid) -> list[Tensor]:
        """Frames are halved on their way to the language model, bilinearly: on an even grid, the mean of 2×2."""
        return encode(self, seen, view, grid, 1 if seen.modality == "image" else 2)
