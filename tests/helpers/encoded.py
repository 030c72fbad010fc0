"""The images of the last prefill with everything that was collected for the method."""

from __future__ import annotations

import eadp
from eadp.models.vision_call import EncodedImage


def encoded_images(pruned: eadp.Pruned) -> list[EncodedImage]:
    return pruned._pruning.images
