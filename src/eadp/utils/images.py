"""Read images from untrusted files. Files that are not images or are too large are rejected by their header."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, ImageSequence, UnidentifiedImageError

MAX_MEGAPIXELS = 50
"""Size limit of an image. A hundred megapixels would take 300 MB of memory, and no model uses them."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Accepted formats. Pillow supports more, but starts other programs to read some of them."""

MAX_FRAMES = 8
"""Default limit of frames that are read from a clip."""


def read_image(path: str | Path, *, upright: bool = True, limited: bool = True) -> Image.Image:
    """Read one image as RGB. From an animated file, read the first frame.

    Args:
        path: The file.
        upright: Whether to rotate the image by its EXIF orientation.
        limited: Whether to reject images of more than `MAX_MEGAPIXELS`. Pillow's own, higher limit always applies.

    Raises:
        ValueError: If the file is not an image, is damaged, or is too large.
    """
    image = _open(Path(path))
    if limited:
        _check_size(Path(path), image)
    return _decode(image, upright)


def read_frames(path: str | Path, count: int = MAX_FRAMES) -> list[Image.Image]:
    """Read one image, or the frames of a clip.

    Args:
        path: An image, an animated file (GIF, WebP, APNG), or a folder of images in the order of their names.
        count: Maximum number of frames to read from a clip, evenly spread.

    Raises:
        ValueError: If a file is missing, not an image, damaged, or too large.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(
            f"there is no file {str(path)!r}: give an image, an animated GIF or WebP, or a folder of frames"
        )
    if path.is_dir():
        files = sorted(each for each in path.iterdir() if each.is_file())
        if not files:
            raise ValueError(f"the folder {str(path)!r} is empty: a clip is a folder of images in the order of names")
        return [read_image(files[index]) for index in spread_evenly(0, len(files), count)]
    image = _open(path)
    _check_size(path, image)
    # The JPEGs of some phones contain a second image for depth. They are not clips.
    total = 1 if image.format in ("JPEG", "MPO") else getattr(image, "n_frames", 1)
    if total == 1:
        return [_decode(image)]
    _check_size(path, image, min(total, count))
    wanted = {*spread_evenly(0, total, count).tolist()}
    return [_decode(frame) for number, frame in enumerate(ImageSequence.Iterator(image)) if number in wanted]


def spread_evenly(first: int, last: int, count: int) -> np.ndarray:
    """Choose `count` of the integers first … last − 1, evenly spread, including both ends; all if there are fewer."""
    if last - first <= count:
        return np.arange(first, last)
    return np.linspace(first, last - 1, count).round().astype(int)


def make_square(
    image: Image.Image, side: int | None = None, pad_colour: tuple[int, int, int] | None = None
) -> Image.Image:
    """Make an image square.

    Args:
        image: The image, in RGB.
        side: Side of the square in pixels; None for the longer side of the image, which requires `pad_colour`.
        pad_colour: Colour that pads the shorter side on both ends; None to stretch the image.
    """
    if pad_colour is not None:
        longer = max(image.size)
        padded = Image.new("RGB", (longer, longer), pad_colour)
        padded.paste(image, ((longer - image.width) // 2, (longer - image.height) // 2))
        image = padded
    return image if side is None else image.resize((side, side), Image.Resampling.BICUBIC)


def _open(path: Path) -> Any:
    """Read the header only."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return Image.open(path, formats=FORMATS)
    except UnidentifiedImageError:
        raise ValueError(f"{path.name} is not an image that can be read: give one of {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError:
        raise ValueError(
            f"{path.name} is too large: at most {MAX_MEGAPIXELS} megapixels are read; scale it down"
        ) from None


def _check_size(path: Path, image: Image.Image, frames: int = 1) -> None:
    width, height = image.size
    if width * height * frames > MAX_MEGAPIXELS * 1_000_000:
        times = f" in each of {frames} frames" if frames > 1 else ""
        raise ValueError(
            f"{path.name} has {width}×{height} pixels{times}: at most {MAX_MEGAPIXELS} megapixels are read; scale it "
            "down"
        )


def _decode(image: Image.Image, upright: bool = True) -> Image.Image:
    try:
        return (ImageOps.exif_transpose(image) if upright else image).convert("RGB")
    except Exception as error:  # Decoders raise errors of every kind on broken files.
        name = Path(getattr(image, "filename", "the image")).name
        raise ValueError(f"{name} is damaged: its pixels cannot be read ({error})") from error
