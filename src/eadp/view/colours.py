"""Colours that also tell apart who sees none: light means more, in cividis' blue to yellow."""

from __future__ import annotations

import torch
from torch import Tensor

STOPS = torch.tensor(
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
"""Ten evenly spaced colours of cividis, made for all kinds of colour vision (Nuñez, Anderton, Renslow, 2018)."""

LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's palette, for curves; each has a dash pattern of its own too."""


def level(values: Tensor) -> Tensor:
    """Any map → [0, 1]; 0 everywhere where it is constant."""
    values = values.detach().cpu().float()
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else torch.zeros_like(values)


def colours(levels: Tensor) -> Tensor:
    """… in [0, 1] → …×3 bytes."""
    place = levels.clamp(0, 1) * (len(STOPS) - 1)
    below = place.floor().long().clamp_max(len(STOPS) - 2)
    share = (place - below)[..., None]
    return (STOPS[below] * (1 - share) + STOPS[below + 1] * share).round().to(torch.uint8)


def on(background: Tensor) -> str:
    """Black or white, whichever reads better on this colour."""
    red, green, blue = background.tolist()
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "white"
