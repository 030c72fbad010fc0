"""Gemma3 and PaliGemma: a fixed number of tokens an image, attention in both directions among them."""

from __future__ import annotations

import math
from typing import Any

from eadp.models.family import Family, Picture, Prompt, Seen, averaged, square


class Gemma3(Family):
    types = ("gemma3", "paligemma")
    makes_masks = True
    # The mask that the base model builds counts columns of the cache, which are fewer than it thinks.
    continues_with_images = False

    def pictures(self, seen: Seen, output: Any, prompt: Prompt) -> list[Picture]:
        vision = self.config.vision_config
        cells = (vision.image_size // vision.patch_size) ** 2
        return [
            Picture.plain(
                [square(length, "the image")],
                arrange=lambda rows, side=math.isqrt(cells // length): averaged(rows, side)[0],
            )
            for length in seen.lengths
        ]
