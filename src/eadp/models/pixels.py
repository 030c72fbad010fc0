"""The pixels of single blocks, and the same at another resolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from eadp.core.types import Grid
from eadp.models.layout import ImageLayout


def block_pixels(crops: Tensor, layouts: Sequence[ImageLayout]) -> list[list[Tensor]]:
    """Cut crops into the parts that the blocks show.

    Args:
        crops: B×3×H×W, the crops of all images, one after the other.
        layouts: The layouts of the images.

    Returns:
        3×height×width for each block of each image.
    """
    images = []
    for layout, part in zip(layouts, crops.split([layout.crops for layout in layouts]), strict=True):
        regions = layout.regions or [(0.0, 0.0, 1.0, 1.0)] * len(layout.grids)
        height, width = part.shape[-2:]
        images.append(
            [
                part[crop][
                    :,
                    round(top * height) : round(bottom * height),
                    round(left * width) : round(right * width),
                ]
                for crop, (top, left, bottom, right) in zip(layout.block_crops, regions, strict=True)
            ]
        )
    return images


def join_crops(pixels: Tensor, layouts: Sequence[ImageLayout]) -> Tensor:
    """List the real crops of a batch: B×3×H×W.

    Args:
        pixels: What a model takes: B×3×H×W, or images×crops×3×H×W, where padding follows the crops of each image.
        layouts: The layouts of the images.
    """
    if pixels.ndim == 4:
        return pixels
    return torch.cat([row[: layout.crops] for row, layout in zip(pixels, layouts, strict=True)])


PADDING_TOLERANCE = 0.02
"""How far a normalised pixel of padding may be from 0: the mean colour is rounded to whole steps of 1/255."""
BLUR = 2
"""Rows of pixels into which bicubic scaling carries the image next to them."""


def padded_patches(pixels: Tensor, patch: int) -> Tensor:
    """Find the patches that show only the padding that made an image square.

    LLaVA pads with the mean colour, which normalisation maps to 0, on both sides of the shorter dimension, and scales
    the square afterwards. The padding is the rows (or columns) of pixels at the borders without any other colour, and
    the few that scaling blurred.

    Args:
        pixels: 3×side×side, normalised.
        patch: The side of a patch in pixels.

    Returns:
        rows·columns booleans.
    """
    is_blank = (pixels.float().abs() <= PADDING_TOLERANCE).all(0)
    rows, columns = (_padded_steps(is_blank.all(dim), patch) for dim in (1, 0))
    return (rows[:, None] | columns).flatten()


def _padded_steps(blank_lines: Tensor, patch: int) -> Tensor:
    """Which steps of `patch` lines are padding. blank_lines: which lines of pixels have no other colour."""
    length = len(blank_lines)
    lines = torch.arange(length, device=blank_lines.device)
    before = int(blank_lines.long().cumprod(0).sum())
    after = int(blank_lines.flip(0).long().cumprod(0).sum())
    if before == length or not before or not after:
        return torch.zeros(length // patch, dtype=torch.bool, device=blank_lines.device)
    is_padding = (lines < before + BLUR) | (lines >= length - after - BLUR)
    return is_padding[: length // patch * patch].view(-1, patch).all(1)


def resize(pixels: Tensor, height: int, width: int) -> Tensor:
    """Scale …×3×h×w to …×3×height×width, bicubically and without aliasing."""
    frames = pixels.reshape(-1, *pixels.shape[-3:]).float()
    small = F.interpolate(frames, size=(height, width), mode="bicubic", antialias=True, align_corners=False)
    return small.view(*pixels.shape[:-2], height, width).to(pixels.dtype)


def pixels_from_patches(patches: Tensor, frames: int, grid: Grid, merge: int, size: int, depth: int) -> Tensor:
    """Rebuild frames from Qwen's patches.

    Args:
        patches: P×(3·depth·size²), grouped by the merge×merge patches of a token.
        frames: The number of temporal patches.
        grid: Rows and columns of patches in a frame.
        merge: The side of the square of patches that becomes one token.
        size: The side of a patch in pixels.
        depth: The number of video frames in one temporal patch.

    Returns:
        frames×depth×3×height×width.
    """
    rows, columns = grid
    blocks = patches.view(frames, rows // merge, columns // merge, merge, merge, -1, depth, size, size)
    return blocks.permute(0, 6, 5, 1, 3, 7, 2, 4, 8).reshape(frames, depth, -1, rows * size, columns * size)


def patches_from_pixels(pixels: Tensor, merge: int, size: int) -> Tensor:
    """Cut one frame into Qwen's patches, the inverse of `pixels_from_patches`.

    Args:
        pixels: depth×3×height×width.
        merge: The side of the square of patches that becomes one token.
        size: The side of a patch in pixels.

    Returns:
        P×(3·depth·size²).
    """
    depth, channels, height, width = pixels.shape
    split = pixels.view(depth, channels, height // size // merge, merge, size, width // size // merge, merge, size)
    return split.permute(2, 5, 3, 6, 1, 0, 4, 7).reshape(-1, channels * depth * size * size)
