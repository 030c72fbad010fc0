"""M-RoPE positions of prompts with pruned images: kept tokens keep their coordinates, or all tokens are renumbered.

The position of a text token depends on the grid of the images before it, not on which of their tokens are kept: the
text after a rows×columns image starts at the image's start + max(rows, columns). So only the coordinates of the kept
tokens are unknown before the image is encoded. They are filled in afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eadp.core.types import Grid

DIGIT_BASE = 256
"""The base of the digits of a coordinate.

Coordinates travel as channels of the features. Each has two digits, because bfloat16 is exact for integers up to 256.
"""
COORDINATE_CHANNELS = 4
"""The channels of a token's coordinates: two digits of its row, two of its column."""


@dataclass(frozen=True)
class ImageSpan:
    """The placeholders of an image in the prompt.

    Attributes:
        offset: The index of the first placeholder.
        length: The number of placeholders.
        grid: The rows and columns of the unpruned image.
    """

    offset: int
    length: int
    grid: Grid


def compute_prompt_positions(length: int, spans: Sequence[ImageSpan], renumber: bool = False) -> tuple[Tensor, int]:
    """Compute the positions of a prompt before its images are encoded.

    All tokens of an image get the position before the image's start, until `fill_in_coordinates` replaces it.

    Args:
        length: The number of tokens of the pruned prompt.
        spans: The images of the prompt.
        renumber: Whether to number all tokens from 0 without gaps if any image is pruned.

    Returns:
        The 3×length positions, and the delta: the position of the next token minus the length of the prompt.
    """
    if renumber and any(span.length < span.grid[0] * span.grid[1] for span in spans):
        return torch.arange(length).expand(3, -1).clone(), 0
    positions = torch.empty(3, length, dtype=torch.long)
    column = position = 0
    for span in sorted(spans, key=lambda each: each.offset):
        text = span.offset - column
        positions[:, column : span.offset] = torch.arange(position, position + text)
        position += text
        column = span.offset + span.length
        positions[:, span.offset : column] = position - 1
        position += max(span.grid)
    positions[:, column:] = torch.arange(position, position + length - column)
    return positions, position - column


def encode_coordinates(slots: Tensor, grid: Grid) -> Tensor:
    """Write the coordinates of kept tokens as channels.

    Args:
        slots: K, the indices of the kept tokens in the grid, row by row.
        grid: The rows and columns of the unpruned image.

    Returns:
        K×COORDINATE_CHANNELS, two digits of the row, then two of the column.
    """
    row, column = slots // grid[1], slots % grid[1]
    return torch.stack([row // DIGIT_BASE, row % DIGIT_BASE, column // DIGIT_BASE, column % DIGIT_BASE], dim=1)


def decode_coordinates(channels: Tensor) -> Tensor:
    """Read the coordinates from the channels of `encode_coordinates`.

    Args:
        channels: K×COORDINATE_CHANNELS.

    Returns:
        3×K: the time (0), row and column of each token, relative to the start of its image.
    """
    digits = channels.long().T
    rows, columns = digits[0] * DIGIT_BASE + digits[1], digits[2] * DIGIT_BASE + digits[3]
    return torch.stack([torch.zeros_like(rows), rows, columns])


def fill_in_coordinates(positions: Tensor, is_image: Tensor, computed: int, coordinates: Tensor) -> Tensor:
    """Set the positions of the next image tokens to their coordinates.

    Args:
        positions: 3×L, from `compute_prompt_positions` or from an earlier call.
        is_image: L, whether a token of the prompt is an image token.
        computed: The number of tokens that the engine has computed.
        coordinates: 3×K, the coordinates of the next K image tokens, relative to the start of their image.

    Returns:
        3×L, the new positions.
    """
    columns = is_image.nonzero().flatten()
    columns = columns[columns >= computed][: coordinates.shape[1]]
    index = torch.arange(len(is_image), device=is_image.device)
    before = torch.where(is_image, -1, index).cummax(0).values[columns]
    start = torch.where(before >= 0, positions[0, before.clamp_min(0)] + 1, 0)
    # Positions that were filled in before or renumbered do not change.
    unfilled = positions[0, columns] == start - 1
    positions = positions.clone()
    positions[:, columns[unfilled]] = (start + coordinates)[:, unfilled]
    return positions
