"""LLaVA-NeXT: AnyRes crops with newline tokens. LLaVA-NeXT-Video: the same for images, and pooled frames."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch import Tensor

from eadp.compat import UNPADDED_FEATURES
from eadp.core.types import Grid
from eadp.models.anyres import AnyresGeometry, packed_layout
from eadp.models.layout import ImageLayout, Placeholders, Pooling, square_grid
from eadp.models.llava import LlavaTowerAdapter
from eadp.models.overrides import Overrides
from eadp.models.vision_call import VisionCall


class LlavaNextGeometry(AnyresGeometry):
    """The whole image, then its crops without padding, joined row by row."""

    model_types = ("llava_next",)

    def layouts(self, call: VisionCall, placeholders: Placeholders) -> list[ImageLayout]:
        layouts = []
        for size in call.listed("image_sizes"):
            crops = self.crop_grid(size)
            layouts.append(packed_layout(self.packed_numbers(crops, size), self.side, crops))
        return layouts


class LlavaNextVideoGeometry(LlavaNextGeometry):
    """Images as in LLaVA-NeXT. Each frame of a clip is a block, pooled before the projector."""

    model_types = ("llava_next_video",)
    modalities = ("image", "video")

    def layouts(self, call: VisionCall, placeholders: Placeholders) -> list[ImageLayout]:
        if call.modality == "image":
            return super().layouts(call, placeholders)
        frames = call.pixel_shape[1]
        pooling = Pooling(self.config.spatial_pool_mode, self.config.spatial_pool_stride)
        return [
            ImageLayout.contiguous(
                [square_grid(length // frames, "a frame")] * frames, crops=frames, pooling=pooling, is_clip=True
            )
            for length in call.lengths
        ]


class LlavaNextAdapter(LlavaTowerAdapter):
    """LLaVA-NeXT on its modules."""

    geometry_class = LlavaNextGeometry
    geometry: LlavaNextGeometry

    def keep_padding(self, overrides: Overrides, processor: Any) -> None:
        if processor is None:
            raise ValueError(
                "unpad=False changes how many placeholders the processor writes: give attach the processor"
            )
        geometry, original = self.geometry, self.base.pack_image_features
        image_size = self.config.vision_config.image_size

        def padded(size: list[int]) -> list[int]:
            rows, columns = geometry.crop_grid(size)
            return [rows * image_size, columns * image_size]

        @wraps(original)
        def pack_image_features(image_features: Any, image_sizes: Any, *args: Any, **kwargs: Any) -> Any:
            sizes = [padded(size) for size in torch.as_tensor(image_sizes).tolist()]
            return original(image_features, sizes, *args, **kwargs)

        def get_unpadded_features(
            height: int, width: int, patches_height: int, patches_width: int, scale_height: int, scale_width: int
        ) -> tuple[int, int]:
            rows, columns = patches_height * scale_height, patches_width * scale_width
            return rows * columns, rows

        overrides.override(self.base, "pack_image_features", pack_image_features)
        overrides.override(processor, UNPADDED_FEATURES, get_unpadded_features)
        self.geometry = type(geometry)(self.config, unpad=False)


class LlavaNextVideoAdapter(LlavaNextAdapter):
    """LLaVA-NeXT-Video on its modules."""

    geometry_class = LlavaNextVideoGeometry

    def arrange(self, layout: ImageLayout, cells: Tensor) -> Tensor:
        if layout.pooling is not None and layout.pooling.mode == "conv":
            return self.base.get_submodule("vision_resampler")(cells).flatten(0, 1)
        return super().arrange(layout, cells)

    def encode(self, call: VisionCall, pixels: Tensor, grid: Grid) -> list[Tensor]:
        if call.modality == "image":
            return super().encode(call, pixels, grid)
        if self.config.spatial_pool_mode != "average":
            raise ValueError("frames can be encoded at another resolution only where spatial_pool_mode is 'average'")
        return self._encode(call, pixels, grid, self.config.spatial_pool_stride)
