"""Images made of whole numbers, the same on every machine."""

from __future__ import annotations

import numpy as np
from PIL import Image


def synthetic_image(side: int) -> Image.Image:
    """Make an image of coloured squares on a grid of stripes."""
    row, column = np.mgrid[:side, :side]
    stripes = (row * 3 + column * 5) % 256
    squares = ((row // 32) * 37 + (column // 32) * 91) % 256
    return Image.fromarray(np.stack((stripes, squares, (stripes + squares) // 2), -1).astype(np.uint8))
