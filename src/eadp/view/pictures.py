"""Pictures from files that may be anything: what is no picture or too large is refused from its header."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps, ImageSequence, UnidentifiedImageError

MEGAPIXELS = 50
"""What a picture may have. A hundred would take 300 MB in memory, and no model sees them."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Those that are read. Pillow knows more, and some of them run programs of their own."""

FRAMES = 8
"""Frames of a clip that are looked at; of a longer one so many, evenly spread."""


def read(path: str | Path, frames: int = FRAMES) -> list[Image.Image]:
    """One picture, or the frames of a clip: an animated file (GIF, WebP, APNG), or a folder of pictures by name."""
    path = Path(path)
    if not path.exists():
        raise ValueError(
            f"there is no file {str(path)!r}: give a picture, an animated GIF or WebP, or a folder of frames"
        )
    if path.is_dir():
        files = sorted(each for each in path.iterdir() if each.is_file())
        if not files:
            raise ValueError(
                f"the folder {str(path)!r} is empty: a clip is a folder of pictures, in the order of names"
            )
        return [_decoded(_opened(each)) for each in evenly(files, frames)]
    picture = _opened(path)
    # Telephones put a second picture for depth into their JPEGs: those are no clips.
    count = 1 if picture.format in ("JPEG", "MPO") else getattr(picture, "n_frames", 1)
    if count == 1:
        return [_decoded(picture)]
    _fits(path, picture, min(count, frames))
    wanted = {*evenly(range(count), frames)}
    return [_decoded(frame) for number, frame in enumerate(ImageSequence.Iterator(picture)) if number in wanted]


def evenly(items: Any, most: int) -> list[Any]:
    """At most so many of the items, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(step * (len(items) - 1) / max(1, most - 1))] for step in range(most)]


def _opened(path: Path) -> Image.Image:
    """The header alone is read here."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            picture = Image.open(path, formats=FORMATS)
    except UnidentifiedImageError:
        raise ValueError(f"{path.name} is no picture that can be read: give a {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError:
        raise ValueError(f"{path.name} is too large: at most {MEGAPIXELS} megapixels are read; scale it down") from None
    _fits(path, picture, 1)
    return picture


def _fits(path: Path, picture: Image.Image, frames: int) -> None:
    width, height = picture.size
    if width * height * frames > MEGAPIXELS * 1_000_000:
        times = f" in each of {frames} frames" if frames > 1 else ""
        raise ValueError(
            f"{path.name} has {width}×{height} pixels{times}: at most {MEGAPIXELS} megapixels are read; scale it down"
        )


def _decoded(picture: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(picture).convert("RGB")
    except Exception as error:  # what broken files make decoders raise is of every kind
        name = Path(getattr(picture, "filename", "the picture")).name
        raise ValueError(f"{name} is damaged, its pixels cannot be read ({error})") from error


def as_seen(picture: Image.Image, processor: Any) -> Image.Image:
    """The part of a picture that a model of one tile sees: CLIP's processors scale it, then cut out its centre; LLaVA's
    may pad it to a square first."""
    images = getattr(processor, "image_processor", processor)
    # In other families the setting of this name pads batches, not pictures.
    if "LlavaImageProcessor" in type(images).__name__ and images.do_pad:
        colour = tuple(round(255 * share) for share in images.image_mean)
        picture = ImageOps.pad(picture, (max(picture.size),) * 2, color=colour)
    shortest = (dict(images.size) if images.size else {}).get("shortest_edge")
    if not getattr(images, "do_center_crop", False) or not shortest:
        return picture
    scale = min(picture.size) / shortest
    width, height = images.crop_size["width"] * scale, images.crop_size["height"] * scale
    left, top = (picture.width - width) / 2, (picture.height - height) / 2
    return picture.crop(tuple(round(edge) for edge in (left, top, left + width, top + height)))
