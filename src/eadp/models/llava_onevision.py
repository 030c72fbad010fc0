"""LLaVA-OneVision: AnyRes crops that are scaled down where there are many, and pooled frames.

LLaVA-Video is the same architecture with another pooling: see `eadp.models.llava_video`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from eadp.core.types import Grid
from eadp.models.anyres import AnyresGeometry, packed_layout, resampled_layout, rows_with_newlines
from eadp.models.layout import ImageLayout, Placeholders, Pooling
from eadp.models.llava import LlavaTowerAdapter
from eadp.models.pixels import block_pixels, join_crops
from eadp.models.vision_call import VisionCall

RESAMPLING_RATIO = 1.1
"""Joined crops are scaled down where their side is longer than the allowed one by more than this factor."""
FRAME_POOLING = 2


class LlavaOnevisionGeometry(AnyresGeometry):
    """Images that are alone in their prompt are cut into crops. Each frame of a clip is a block.

    A clip has one newline at its end; as LLaVA-Video, one after each row.
    """

    model_types = ("llava_onevision",)
    modalities = ("image", "video")

    def layouts(self, call: VisionCall, placeholders: Placeholders) -> list[ImageLayout]:
        if call.modality == "video":
            return [self._clip_layout(call.pixel_shape[1], length) for length in call.lengths]
        ratio = call.arguments.get("vision_aspect_ratio") or self.config.vision_aspect_ratio
        most_crops = int(ratio.removeprefix("anyres_max_"))
        return [
            self._image_layout(size, self.crop_grid(size) if is_cropped else (0, 0), most_crops)
            for size, is_cropped in zip(call.listed("image_sizes"), self._are_cropped(call), strict=True)
        ]

    def has_tower_rows(self, layout: ImageLayout) -> bool:
        """Clips are pooled, and many crops scaled down, after the projector."""
        return layout.pooling is None and not layout.resampled

    def arrange(self, layout: ImageLayout, cells: Tensor) -> Tensor:
        if not layout.resampled:
            return super().arrange(layout, cells)
        joined = self.join_local_cells(cells[1:], *self._crops_and_size(layout))
        scaled = F.interpolate(joined[None], list(layout.grids[1]), mode="bilinear")[0]
        return torch.cat([cells[0], scaled.flatten(1).T])

    def block_pixels(self, call: VisionCall, layouts: Sequence[ImageLayout]) -> list[list[Tensor]]:
        images, crops = [], join_crops(cast(Tensor, call.pixels), layouts)
        for layout, part in zip(layouts, crops.split([layout.crops for layout in layouts]), strict=True):
            if layout.resampled:
                local = part[1:].permute(0, 2, 3, 1)
                images.append([part[0], self.join_local_crops(local, *self._crops_and_size(layout))])
            else:
                images += block_pixels(part, [layout])
        return images

    def _are_cropped(self, call: VisionCall) -> list[bool]:
        if call.arguments.get("batch_num_images") is None:
            return [True] * len(call.lengths)
        return [number == 1 for number in call.listed("batch_num_images") for _ in range(number)]

    def _image_layout(self, size: list[int], crops: Grid, most_crops: int) -> ImageLayout:
        packed = self.packed_numbers(crops, size)
        # Every row of the joined crops ends with a newline; the whole image comes first.
        rows = int((packed < 0).sum())
        columns = (len(packed) - self.side**2) // rows - 1
        ratio = math.sqrt(rows * columns / (most_crops * self.side**2))
        if not crops[0] or ratio <= RESAMPLING_RATIO:
            return packed_layout(packed, self.side, crops)
        height, width = size
        return resampled_layout(
            self.side,
            int(rows // ratio),
            int(columns // ratio),
            crops=1 + crops[0] * crops[1],
            image_size=(height, width),
        )

    def _crops_and_size(self, layout: ImageLayout) -> tuple[Grid, list[int]]:
        size = list(cast(tuple[int, int], layout.image_size))
        return self.crop_grid(size), size

    def _clip_layout(self, frames: int, length: int) -> ImageLayout:
        rounded_up, rounded_down = math.ceil(self.side / FRAME_POOLING), self.side // FRAME_POOLING
        if length == frames * rounded_up**2 + 1:
            tokens = frames * rounded_up**2
            grid, slots, newlines = (rounded_up,) * 2, torch.arange(tokens), torch.full((tokens,), tokens)
            pooling = Pooling("bilinear", FRAME_POOLING)
        elif length == frames * rounded_down * (rounded_down + 1):
            grid = (rounded_down,) * 2
            slots, newlines = rows_with_newlines(frames * rounded_down, rounded_down)
            pooling = Pooling("average", FRAME_POOLING)
        else:
            raise ValueError(
                f"{frames} frames came as {length} tokens: neither as frames of {rounded_up}×{rounded_up} with one "
                f"newline at the end nor as frames of {rounded_down}×{rounded_down} with one after each row"
            )
        return ImageLayout([grid] * frames, slots, length, newlines, crops=frames, pooling=pooling, is_clip=True)


class LlavaOnevisionAdapter(LlavaTowerAdapter):
    """LLaVA-OneVision on its modules."""

    geometry_class = LlavaOnevisionGeometry

    def encode(self, call: VisionCall, pixels: Tensor, grid: Grid) -> list[Tensor]:
        """Encode a block again. The model halves frames bilinearly: on an even grid, that is the mean of 2×2."""
        return self._encode(call, pixels, grid, 1 if call.modality == "image" else FRAME_POOLING)
