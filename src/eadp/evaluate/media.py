"""Pictures and clips as a harness names them, read as a processor takes them."""

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

READERS = {"torchcodec": "torchcodec", "pyav": "av", "decord": "decord", "opencv": "cv2"}
"""What reads clips, and the package that it takes; the first that is there does it."""


CROPS = "crops"
SQUARES = ("stretch", "pad", CROPS)
"""How an image becomes a square: its sides stretched, or the shorter one filled up; or as a model that cuts images into
crops does it for the one size that it is left with."""
MEAN = "mean"
"""As a colour: the mean colour of the model's image processor, with which LLaVA pads."""

Colour = tuple[int, int, int]


class Square(NamedTuple):
    """What every image is made into: a square of `side` pixels (None: of its longer side), padded with `colour` (None:
    stretched)."""

    side: int | None
    colour: Colour | None = None


class Clip(NamedTuple):
    """frames: F×H×W×3. metadata: which frames of the clip they are, and when."""

    frames: np.ndarray
    metadata: VideoMetadata


def load_image(given: Any, square: Square | None = None) -> Image.Image:
    """An image, or the path of one; made into a square where one is given."""
    # As the harnesses' own models read it: not turned upright, of any size.
    image = given.convert("RGB") if isinstance(given, Image.Image) else read_image(given, upright=False, limited=False)
    return image if square is None else make_square(image, square.side, square.colour)


def load_clip(given: Any, frames: int, start: float | None = None, end: float | None = None) -> Clip:
    """`frames` frames, evenly from the first to the last, of the path of a clip between two seconds, or of its frames.

    A clip with fewer has them all.
    """
    if isinstance(given, str | PathLike):
        return Clip(*_read(str(given), frames, start, end))
    if not isinstance(given, Sequence | np.ndarray) or not len(given):
        raise ValueError(f"a clip is a path or a sequence of frames, got {type(given).__name__}")
    picks = spread_evenly(0, len(given), frames)
    stack = np.stack([np.asarray(load_image(given[i]) if isinstance(given, Sequence) else given[i]) for i in picks])
    return Clip(stack, VideoMetadata(total_num_frames=len(given), fps=None, frames_indices=picks.tolist()))


def _read(path: Any, frames: int, start: float | None, end: float | None) -> Any:
    reader = next((name for name, package in READERS.items() if find_spec(package)), None)
    if reader is None:
        raise ImportError("to read a clip, install one of: pip install av, torchcodec, decord, opencv-python")

    def sample(metadata: VideoMetadata, **_: Any) -> np.ndarray:
        total, rate = metadata.total_num_frames, metadata.fps or 0.0
        first = 0 if start is None else min(int(start * rate), total - 1)
        last = total if end is None else max(first + 1, min(int(end * rate) + 1, total))
        return spread_evenly(first, last, frames)

    return load_video(path, backend=reader, sample_indices_fn=sample)


def square_of(model: Any, processor: Any, resolution: int | None, square: str, pad_colour: str) -> Square | None:
    """What images are made into, with the processor told to leave that size as it is; None: nothing.

    resolution: the side in pixels; None: the processor decides. square: one of SQUARES. pad_colour: see `colour_of`.
    """
    if square == CROPS:
        _leave_one_size(model, processor, resolution)
        return None
    if resolution is not None:
        _fix(model, processor.image_processor, resolution)
    if square == "pad":
        return Square(resolution, colour_of(pad_colour, processor.image_processor))
    return None if resolution is None else Square(resolution)


def _leave_one_size(model: Any, processor: Any, resolution: int | None) -> None:
    """Leave the model one size to cut images for. The whole image is stretched to it, its crops are cut from the image
    in its own shape, filled up with black."""
    if resolution is None:
        raise ValueError(f"square={CROPS} needs resolution=, the one size that images are cut for")
    _fix(model, processor.image_processor, resolution)
    if isinstance(adapter_of(model), Qwen2_5_VLAdapter):
        raise ValueError(f"square={CROPS} is for models that cut images into crops, as LLaVA-NeXT: use pad or stretch")
    for owner in (adapter_of(model).config, processor.image_processor):
        owner.image_grid_pinpoints = [[resolution, resolution]]


def colour_of(name: str, images: Any) -> Colour:
    """MEAN, or a colour as Pillow reads it: black, #7f7f7f. images: the model's image processor."""
    if name == MEAN:
        red, green, blue = (int(255 * share) for share in images.image_mean)
        return red, green, blue
    return check_colour(name)


def check_colour(name: str) -> Colour:
    try:
        return ImageColor.getrgb(name)[:3]
    except ValueError:
        raise ValueError(f"pad_colour is {MEAN}, or a colour such as black or #7f7f7f, got {name!r}") from None


def _fix(model: Any, images: Any, resolution: int) -> None:
    """Let the image processor leave squares of this side as they are; told where the model takes none."""
    if (sizes := getattr(model.config, "image_grid_pinpoints", None)) is not None:
        squares = [height for height, width in sizes if height == width]
        if resolution not in squares:
            raise ValueError(
                f"resolution={resolution} is no square that {model.config.model_type} cuts into crops: it takes "
                f"{', '.join(map(str, squares))}"
            )
    elif isinstance(adapter_of(model), Qwen2_5_VLAdapter):
        cell = images.patch_size * images.merge_size
        if resolution < cell or resolution % cell:
            near = max(1, round(resolution / cell)) * cell
            raise ValueError(
                f"a visual token covers {cell}×{cell} pixels: resolution={resolution} is no multiple, {near} is"
            )
        images.size = {**dict(images.size), "shortest_edge": resolution**2, "longest_edge": resolution**2}
    else:
        raise ValueError(
            f"resolution= is for Qwen2.5-VL and Qwen3-VL, which take images of any size, and for LLaVA-NeXT and its "
            f"like, which cut them into crops; {model.config.model_type} has its own: leave it out"
        )
