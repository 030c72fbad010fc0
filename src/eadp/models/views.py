"""Pixels of single blocks, and the same at other resolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from eadp.core.types import Grid

if TYPE_CHECKING:
    from eadp.models.family import Picture


def block_views(crops: Tensor, pictures: Sequence[Picture]) -> list[list[Tensor]]:
    """3×height×width for each block of each picture. crops: B×3×H×W, those of all pictures one after the other."""
    views = []
    for picture, part in zip(pictures, crops.split([picture.crops for picture in pictures]), strict=True):
        shown = range(len(picture.grids)) if picture.shown is None else picture.shown
        regions = picture.regions or [(0.0, 0.0, 1.0, 1.0)] * len(picture.grids)
        height, width = part.shape[-2:]
        views.append(
            [
                part[crop][
                    :,
                    round(top * height) : round(bottom * height),
                    round(left * width) : round(right * width),
                ]
                for crop, (top, left, bottom, right) in zip(shown, regions, strict=True)
            ]
        )
    return views


def flat_crops(pixels: Tensor, pictures: Sequence[Picture]) -> Tensor:
    """B×3×H×W of the real crops from what a model takes: that, or one row a picture with padding behind its crops."""
    if pixels.ndim == 4:
        return pixels
    return torch.cat([row[: picture.crops] for row, picture in zip(pixels, pictures, strict=True)])


def resized(view: Tensor, height: int, width: int) -> Tensor:
    """…×3×h×w → …×3×height×width, without aliasing."""
    frames = view.reshape(-1, *view.shape[-3:]).float()
    small = F.interpolate(frames, size=(height, width), mode="bicubic", antialias=True, align_corners=False)
    return small.view(*view.shape[:-2], height, width).to(view.dtype)


def from_patches(patches: Tensor, frames: int, grid: Grid, merge: int, size: int, depth: int) -> Tensor:
    """Qwen's P×(3·depth·size²), grouped by the merge×merge patches of a token, → frames×depth×3×height×width."""
    rows, columns = grid
    blocks = patches.view(frames, rows // merge, columns // merge, merge, merge, -1, depth, size, size)
    return blocks.permute(0, 6, 5, 1, 3, 7, 2, 4, 8).reshape(frames, depth, -1, rows * size, columns * size)


def to_patches(view: Tensor, merge: int, size: int) -> Tensor:
    """depth×3×height×width → P×(3·depth·size²), one frame the other way round."""
    depth, channels, height, width = view.shape
    split = view.view(depth, channels, height // size // merge, merge, size, width // size // merge, merge, size)
    return split.permute(2, 5, 3, 6, 1, 0, 4, 7).reshape(-1, channels * depth * size * size)
