"""The part of an image that a model receives."""

from __future__ import annotations

from typing import Any

from PIL import Image, ImageOps


def visible_area(image: Image.Image, processor: Any) -> Image.Image:
    """Cut out the part of an image that a model receives if it takes the image as one tile.

    CLIP's image processor scales an image and crops its centre. LLaVA's may first pad it to a square.

    Args:
        image: The image.
        processor: The processor of the model, or its image processor.

    Returns:
        The visible part, at the resolution of the image.
    """
    image_processor = getattr(processor, "image_processor", processor)
    # In other families, `do_pad` pads batches, not images.
    if "LlavaImageProcessor" in type(image_processor).__name__ and image_processor.do_pad:
        colour = tuple(round(255 * share) for share in image_processor.image_mean)
        image = ImageOps.pad(image, (max(image.size),) * 2, color=colour)
    shortest = (dict(image_processor.size) if image_processor.size else {}).get("shortest_edge")
    if not getattr(image_processor, "do_center_crop", False) or not shortest:
        return image
    scale = min(image.size) / shortest
    crop = image_processor.crop_size
    width, height = crop["width"] * scale, crop["height"] * scale
    left, top = (image.width - width) / 2, (image.height - height) / 2
    return image.crop(tuple(round(edge) for edge in (left, top, left + width, top + height)))
