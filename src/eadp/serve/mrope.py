"""M-RoPE positions of prompts whose images are pruned: each kept token has the coordinates it had, or all tokens are
renumbered without gaps.

A text token's position does not depend on which tokens of an image stay, only on the image's grid: text after a
rows×columns image goes on at its start + max(rows, columns). So all but the kept tokens' own coordinates is known
before the image is seen, and only those are filled in later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eadp.core.types import Grid

BASE = 256
"""Coordinates travel as channels of the features, in two digits: whole numbers up to 256 are exact also in bfloat16."""
CHANNELS = 4


@dataclass(frozen=True)
class Run:
    """An image's placeholders in the prompt: where they begin, how many there are, and its unpruned grid."""

    offset: int
    length: int
    grid: Grid


def prompt_positions(length: int, runs: Sequence[Run], renumber: bool = False) -> tuple[Tensor, int]:
    """3×length, and how far positions run ahead of the count at the end.

    In place of an image's coordinates stands the position before its start, until `filled_in` knows them. renumber:
    where some image is pruned, all tokens count on instead.
    """
    if renumber and any(run.length < run.grid[0] * run.grid[1] for run in runs):
        return torch.arange(length).expand(3, -1).clone(), 0
    positions = torch.empty(3, length, dtype=torch.long)
    column = position = 0
    for run in sorted(runs, key=lambda each: each.offset):
        text = run.offset - column
        positions[:, column : run.offset] = torch.arange(position, position + text)
        position += text
        column = run.offset + run.length
        positions[:, run.offset : column] = position - 1
        position += max(run.grid)
    positions[:, column:] = torch.arange(position, position + length - column)
    return positions, position - column


def to_channels(slots: Tensor, grid: Grid) -> Tensor:
    """K×CHANNELS: rows and columns of some cells of a grid, each in two digits."""
    row, column = slots // grid[1], slots % grid[1]
    return torch.stack([row // BASE, row % BASE, column // BASE, column % BASE], dim=1)


def from_channels(channels: Tensor) -> Tensor:
    """3×K: time, row, column, counted from the image's start."""
    digits = channels.long().T
    rows, columns = digits[0] * BASE + digits[1], digits[2] * BASE + digits[3]
    return torch.stack([torch.zeros_like(rows), rows, columns])


def filled_in(positions: Tensor, is_image: Tensor, computed: int, coordinates: Tensor) -> Tensor:
    """The prompt's positions with the coordinates of the image tokens that come next.

    positions: 3×L; is_image: L; computed: how many columns are done; coordinates: 3×K, of the next K image tokens.
    """
    columns = is_image.nonzero().flatten()
    columns = columns[columns >= computed][: coordinates.shape[1]]
    index = torch.arange(len(is_image), device=is_image.device)
    before = torch.where(is_image, -1, index).cummax(0).values[columns]
    start = torch.where(before >= 0, positions[0, before.clamp_min(0)] + 1, 0)
    # Those that were filled in before, or are renumbered, stay as they are.
    waiting = positions[0, columns] == start - 1
    positions = positions.clone()
    positions[:, columns[waiting]] = (start + coordinates)[:, waiting]
    return positions
