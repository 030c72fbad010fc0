"""Colours that people with any kind of colour vision can distinguish."""

from __future__ import annotations

import torch
from torch import Tensor

BLUE, VERMILLION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
ORANGE, SKY_BLUE, YELLOW, BLACK = "#e69f00", "#56b4e9", "#f0e442", "#000000"
OKABE_ITO = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY_BLUE, YELLOW, BLACK)
"""The palette of Okabe and Ito, for lines and bars. The first six are also visible as thin lines on white."""

CIVIDIS = torch.tensor(
    [
        (0, 34, 78),
        (18, 53, 112),
        (59, 73, 108),
        (87, 93, 109),
        (112, 113, 115),
        (138, 134, 120),
        (165, 156, 116),
        (195, 179, 105),
        (225, 204, 85),
        (254, 232, 56),
    ],
    dtype=torch.float32,
)
"""Ten evenly spaced colours of cividis, from dark blue to light yellow (Nuñez, Anderton, Renslow, 2018)."""


def normalize(values: Tensor) -> Tensor:
    """Scale values linearly to [0, 1]. Constant values become 0."""
    values = values.detach().cpu().float()
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else torch.zeros_like(values)


def to_colours(levels: Tensor) -> Tensor:
    """Map levels in [0, 1] to colours of cividis: shape S to shape S×3, uint8."""
    position = levels.clamp(0, 1) * (len(CIVIDIS) - 1)
    below = position.floor().long().clamp_max(len(CIVIDIS) - 2)
    share = (position - below)[..., None]
    return (CIVIDIS[below] * (1 - share) + CIVIDIS[below + 1] * share).round().to(torch.uint8)


def text_colour(background: Tensor) -> str:
    """Return black or white, whichever is easier to read on this background (3 values, red, green, blue)."""
    red, green, blue = background.tolist()
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "white"
