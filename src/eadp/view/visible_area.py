"""The part of an image that reaches the model."""

from __future__ import annotations

from typing import Any

from PIL import Image, ImageOps


def visible_area(image: Image.Image, processor: Any) -> Image.Image:
    """Cut out the part of an image that a model of one tile sees.

    CLIP's image processors scale an image and cut out its centre. LLaVA's may first pad it to a square.
    """
    images = getattr(processor, "image_processor", processor)
    # In other families the setting of this name pads batches, not images.
    if "LlavaImageProcessor" in type(images).__name__ and images.do_pad:
        colour = tuple(round(255 * share) for share in images.image_mean)
        image = ImageOps.pad(image, (max(image.size),) * 2, color=colour)
    shortest = (dict(images.size) if images.size else {}).get("shortest_edge")
    if not getattr(images, "do_center_crop", False) or not shortest:
        return image
    scale = min(image.size) / shortest
    width, height = images.crop_size["width"] * scale, images.crop_size["height"] * scale
    left, top = (image.width - width) / 2, (image.height - height) / 2
    return image.crop(tuple(round(edge) for edge in (left, top, left + width, top + height)))
