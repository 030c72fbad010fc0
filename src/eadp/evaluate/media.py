"""Images and videos as a harness passes them, loaded as a processor expects them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageColor
from transformers.video_utils import VideoMetadata, load_video

from eadp.models import adapter_of
from eadp.models.qwen import Qwen2_5_VLAdapter
from eadp.utils.images import make_square, read_image, spread_evenly

VIDEO_READERS = {"torchcodec": "torchcodec", "pyav": "av", "decord": "decord", "opencv": "cv2"}
"""The readers of videos and the packages that they need. The first one that is installed is used."""

CROPS = "crops"
SQUARES = ("stretch", "pad", CROPS)
"""How an image becomes a square: stretched, padded, or as a model does it that cuts images into crops of one size."""
MEAN = "mean"
"""Stands for the mean colour of the model's image processor, with which LLaVA pads."""

Colour = tuple[int, int, int]


class Square(NamedTuple):
    """The square that every image is made into.

    Attributes:
        side: The side in pixels; None for the longer side of the image.
        colour: The colour of the padding; None to stretch the image instead.
    """

    side: int | None
    colour: Colour | None = None


class Clip(NamedTuple):
    """Frames of a video.

    Attributes:
        frames: F×H×W×3.
        metadata: Which frames of the video they are, and the frame rate.
    """

    frames: np.ndarray
    metadata: VideoMetadata


def load_image(image: Any, square: Square | None = None) -> Image.Image:
    """Load an image as RGB.

    Args:
        image: A PIL image or a path.
        square: The square that it is made into, if any.
    """
    # As the harnesses' own models read images: ignoring the EXIF orientation, and of any size.
    loaded = image.convert("RGB") if isinstance(image, Image.Image) else read_image(image, upright=False, limited=False)
    return loaded if square is None else make_square(loaded, square.side, square.colour)


def load_clip(video: Any, frames: int, start: float | None = None, end: float | None = None) -> Clip:
    """Load evenly spaced frames of a video, from the first to the last.

    Args:
        video: The path of a video, or a sequence of frames.
        frames: The number of frames; a video with fewer has them all.
        start: The second at which the part to load begins, if the video is a path.
        end: The second at which it ends.

    Raises:
        ValueError: If the video is neither a path nor a sequence with at least one frame.
        ImportError: If no reader of videos is installed.
    """
    if isinstance(video, str | PathLike):
        return Clip(*_read_video(str(video), frames, start, end))
    if not isinstance(video, Sequence | np.ndarray) or not len(video):
        raise ValueError(f"a video must be a path or a sequence of frames, got {type(video).__name__}")
    picks = spread_evenly(0, len(video), frames)
    stack = np.stack([np.asarray(load_image(video[i]) if isinstance(video, Sequence) else video[i]) for i in picks])
    return Clip(stack, VideoMetadata(total_num_frames=len(video), fps=None, frames_indices=picks.tolist()))


def _read_video(path: Any, frames: int, start: float | None, end: float | None) -> Any:
    reader = next((name for name, package in VIDEO_READERS.items() if find_spec(package)), None)
    if reader is None:
        raise ImportError("to read a video, install one of: pip install av, torchcodec, decord, opencv-python")

    def select_frames(metadata: VideoMetadata, **_: Any) -> np.ndarray:
        total, rate = metadata.total_num_frames, metadata.fps or 0.0
        first = 0 if start is None else min(int(start * rate), total - 1)
        last = total if end is None else max(first + 1, min(int(end * rate) + 1, total))
        return spread_evenly(first, last, frames)

    return load_video(path, backend=reader, sample_indices_fn=select_frames)


def set_image_size(model: Any, processor: Any, resolution: int | None, square: str, pad_colour: str) -> Square | None:
    """Set the size of all images, and configure the processor so that it does not resize them again.

    Args:
        model: The model.
        processor: Its processor.
        resolution: The side in pixels; None lets the processor decide.
        square: One of `SQUARES`.
        pad_colour: `MEAN`, or a colour that Pillow can read.

    Returns:
        The square that `load_image` makes of every image; None to leave images as they are.

    Raises:
        ValueError: If the model does not support the resolution or the square.
    """
    if square == CROPS:
        _allow_one_size(model, processor, resolution)
        return None
    if resolution is not None:
        _set_resolution(model, processor.image_processor, resolution)
    if square == "pad":
        return Square(resolution, _padding_colour(pad_colour, processor.image_processor))
    return None if resolution is None else Square(resolution)


def _allow_one_size(model: Any, processor: Any, resolution: int | None) -> None:
    """Make the model cut every image into the crops of one size.

    The model stretches the full image to this size, and cuts the crops from the image in its own aspect ratio, padded
    with black.
    """
    if resolution is None:
        raise ValueError(f"square={CROPS} needs resolution=, the size for which images are cut")
    _set_resolution(model, processor.image_processor, resolution)
    if isinstance(adapter_of(model), Qwen2_5_VLAdapter):
        raise ValueError(f"square={CROPS} is for models that cut images into crops, as LLaVA-NeXT: use pad or stretch")
    for owner in (adapter_of(model).config, processor.image_processor):
        owner.image_grid_pinpoints = [[resolution, resolution]]


def _padding_colour(name: str, image_processor: Any) -> Colour:
    if name == MEAN:
        red, green, blue = (int(255 * share) for share in image_processor.image_mean)
        return red, green, blue
    return parse_colour(name)


def parse_colour(name: str) -> Colour:
    """Parse a colour as Pillow does: "black", "#7f7f7f".

    Raises:
        ValueError: If Pillow does not know the colour.
    """
    try:
        return ImageColor.getrgb(name)[:3]
    except ValueError:
        raise ValueError(f"pad_colour must be {MEAN}, or a colour such as black or #7f7f7f, got {name!r}") from None


def _set_resolution(model: Any, image_processor: Any, resolution: int) -> None:
    """Make the image processor keep squares of this side as they are, or raise if the model does not support them."""
    if (sizes := getattr(model.config, "image_grid_pinpoints", None)) is not None:
        squares = [height for height, width in sizes if height == width]
        if resolution not in squares:
            raise ValueError(
                f"{model.config.model_type} cannot cut a square of resolution={resolution} into crops: use one of "
                f"{', '.join(map(str, squares))}"
            )
    elif isinstance(adapter_of(model), Qwen2_5_VLAdapter):
        cell = image_processor.patch_size * image_processor.merge_size
        if resolution < cell or resolution % cell:
            nearest = max(1, round(resolution / cell)) * cell
            raise ValueError(
                f"a visual token covers {cell}×{cell} pixels, so resolution must be a multiple of {cell}, such as "
                f"{nearest}, got {resolution}"
            )
        image_processor.size = {
            **dict(image_processor.size),
            "shortest_edge": resolution**2,
            "longest_edge": resolution**2,
        }
    else:
        raise ValueError(
            f"resolution= is for Qwen2.5-VL and Qwen3-VL, which take images of any size, and for models such as "
            f"LLaVA-NeXT, which cut them into crops; {model.config.model_type} has a fixed size: leave resolution out"
        )
