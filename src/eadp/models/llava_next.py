"""LLaVA-NeXT: AnyRes crops with newline tokens. LLaVA-NeXT-Video: the same for images, and pooled frames."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from eadp.compat import UNPADDED_FEATURES, get_anyres_image_grid_shape
from eadp.core.types import Grid
from eadp.models.anyres import NEWLINE, picture
from eadp.models.family import Family, Picture, Prompt, Seen, TowerRows, square
from eadp.models.llava import encode, tower_rows, tower_states
from eadp.models.overrides import Overrides


class LlavaNext(Family):
    types = ("llava_next",)

    def pictures(self, seen: Seen, output: Any, prompt: Prompt) -> list[Picture]:
        vision = self.config.vision_config
        side = vision.image_size // vision.patch_size
        pictures, states = [], tower_states(self.config, seen, output)
        for size in seen.listed("image_sizes"):
            crops = get_anyres_image_grid_shape(size, self.config.image_grid_pinpoints, vision.image_size)
            count = 1 + crops[0] * crops[1]
            pictures.append(picture(self._packed(count, side, size), side, crops, states[:count]))
            states = states[count:]
        return pictures

    def tower_rows(self, seen: Seen, output: Any, pictures: Sequence[Picture]) -> Sequence[TowerRows | None]:
        return tower_rows(self, seen, output, pictures)

    def encode(self, seen: Seen, view: Tensor, grid: Grid) -> list[Tensor]:
        return encode(self, seen, view, grid)

    def keep_padding(self, overrides: Overrides, processor: Any) -> None:
        if processor is None:
            raise ValueError(
                "unpad=False changes how many placeholders the processor writes: give attach the processor"
            )
        vision, stock = self.config.vision_config, self.base.pack_image_features

        def padded(size: Sequence[int]) -> list[int]:
            rows, columns = get_anyres_image_grid_shape(size, self.config.image_grid_pinpoints, vision.image_size)
            return [rows * vision.image_size, columns * vision.image_size]

        @wraps(stock)
        def pack_image_features(image_features: Any, image_sizes: Any, *args: Any, **kwargs: Any) -> Any:
            sizes = [padded(size) for size in torch.as_tensor(image_sizes).tolist()]
            return stock(image_features, sizes, *args, **kwargs)

        def get_unpadded_features(
            height: int, width: int, patches_height: int, patches_width: int, scale_height: int, scale_width: int
        ) -> tuple[int, int]:
            rows, columns = patches_height * scale_height, patches_width * scale_width
            return rows * columns, rows

        overrides.override(self.base, "pack_image_features", pack_image_features)
        overrides.override(processor, UNPADDED_FEATURES, get_unpadded_features)

    def _packed(self, crops: int, side: int, size: list[int]) -> Tensor:
        """The number of each packed token, by the model's own packing."""
        numbers = torch.arange(crops * side**2).view(crops, side**2, 1)
        (packed,), _ = self.base.pack_image_features(
            [numbers], [size], vision_feature_select_strategy="full", image_newline=torch.tensor([NEWLINE])
        )
        return packed[:, 0]


class LlavaNextVideo(LlavaNext):
    types = ("llava_next_video",)
    modalities = ("image", "video")

    def pictures(self, seen: Seen, output: Any, prompt: Prompt) -> list[Picture]:
        if seen.modality == "image":
            return super().pictures(seen, output, prompt)
        frames = seen.pixels[1]
        states = tower_states(self.config, seen, output).split(frames)
        pool = self.base.get_submodule("vision_resampler")
        return [
            Picture.plain(
                [square(length // frames, "a frame")] * frames,
                states=clip,
                arrange=lambda aligned: pool(aligned).flatten(0, 1),
                crops=frames,
            )
            for length, clip in zip(seen.lengths, states, strict=True)
        ]

    def encode(self, seen: Seen, view: Tensor, grid: Grid) -> list[Tensor]:
        if seen.modality == "image":
            return super().encode(seen, view, grid)
        if self.config.spatial_pool_mode != "average":
            raise ValueError("frames can be seen at another resolution only where spatial_pool_mode is 'average'")
        return encode(self, seen, view, grid, self.config.spatial_pool_stride)
