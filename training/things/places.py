"""Where things are, as numbers that a linear layer can read: for the language model, and for the tower to write down.

A tower that only says what each patch shows forgets where the patch is, and then no projector can tell the language
model. So the vision stage has the tower write the same numbers.
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from eadp.pocket.things.render import GRID

WAVES = (0.5, 1.0, 2.0, 4.0)
"""Periods per image of the waves that say precisely where a thing is."""

NUMBERS = 4 * len(WAVES) + 3
"""Numbers per patch: a sine and a cosine of each wave across and down, the place itself, and the size."""

LARGE = 8
"""The size of a large thing, in patches."""


def as_numbers(outlines: Tensor) -> Tensor:
    """Return places and sizes as waves and as they are, …×NUMBERS.

    Args:
        outlines: …×3: how far right and how far down, from 0 to 1, and the size in patches, 0 for the background.
    """
    where, size = outlines[..., :2], outlines[..., 2:]
    phases = 2 * pi * where[..., None] * torch.tensor(WAVES)
    return torch.cat((phases.sin().flatten(-2), phases.cos().flatten(-2), 2 * where - 1, size / LARGE), -1)


def outlines_of(positions: Tensor, offsets: Tensor, sizes: Tensor) -> Tensor:
    """Return the outline of what each patch shows, …×3: the centre and the size of its thing, or its own place.

    Args:
        positions: The index of each patch in its scene.
        offsets: …×2, the way to the centre of its thing, in patches; 0 for nothing.
        sizes: The longer side of the thing, in patches; 0 for nothing.
    """
    own = torch.stack((positions % GRID, positions // GRID), -1) + 0.5
    return torch.cat(((own + offsets) / GRID, sizes[..., None]), -1)
