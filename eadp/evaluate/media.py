"""Pictures and clips as a harness names them, read as a processor takes them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from transformers.video_utils import VideoMetadata, load_video

from eadp.models import family_of
from eadp.models.qwen import Qwen2_5_VL

READERS = {"torchcodec": "torchcodec", "pyav": "av", "decord": "decord", "opencv": "cv2"}
"""What reads clips, and the package that it takes; the first that is there does it."""


class Clip(NamedTuple):
    """frames: F×H×W×3. metadata: which frames of the clip they are, and when."""

    frames: np.ndarray
    metadata: VideoMetadata


def picture(given: Any, side: int | None = None) -> Image.Image:
    """A picture, or the path of one; stretched to side×side where a side is given."""
    image = given if isinstance(given, Image.Image) else Image.open(given)
    image = image.convert("RGB")
    return image if side is None else image.resize((side, side), Image.Resampling.BICUBIC)


def clip(given: Any, frames: int, start: float | None = None, end: float | None = None) -> Clip:
    """`frames` frames, evenly from the first to the last, of the path of a clip between two seconds, or of its frames.

    A clip with fewer has them all.
    """
    if isinstance(given, str | PathLike):
        return Clip(*_read(str(given), frames, start, end))
    if not isinstance(given, Sequence | np.ndarray) or not len(given):
        raise ValueError(f"a clip is a path or a sequence of frames, got {type(given).__name__}")
    picks = evenly(0, len(given), frames)
    stack = np.stack([np.asarray(picture(given[i]) if isinstance(given, Sequence) else given[i]) for i in picks])
    return Clip(stack, VideoMetadata(total_num_frames=len(given), fps=None, frames_indices=picks.tolist()))


def _read(path: Any, frames: int, start: float | None, end: float | None) -> Any:
    reader = next((name for name, package in READERS.items() if find_spec(package)), None)
    if reader is None:
        raise ImportError("to read a clip, install one of: pip install av, torchcodec, decord, opencv-python")

    def sample(metadata: VideoMetadata, **_: Any) -> np.ndarray:
        total, rate = metadata.total_num_frames, metadata.fps or 0.0
        first = 0 if start is None else min(int(start * rate), total - 1)
        last = total if end is None else max(first + 1, min(int(end * rate) + 1, total))
        return evenly(first, last, frames)

    return load_video(path, backend=reader, sample_indices_fn=sample)


def evenly(first: int, last: int, count: int) -> np.ndarray:
    """`count` of the numbers first … last − 1, the ends among them; all where there are no more."""
    if last - first <= count:
        return np.arange(first, last)
    return np.linspace(first, last - 1, count).round().astype(int)


def fixed_side(model: Any, processor: Any, resolution: int | None) -> int | None:
    """The side to which images are stretched, with the processor told to leave that size as it is."""
    if resolution is None:
        return None
    if not isinstance(family_of(model), Qwen2_5_VL):
        raise ValueError(
            f"resolution= is for Qwen2.5-VL and Qwen3-VL, which take images of any size; {model.config.model_type} "
            "has its own: leave it out"
        )
    images = processor.image_processor
    cell = images.patch_size * images.merge_size
    if resolution < cell or resolution % cell:
        near = max(1, round(resolution / cell)) * cell
        raise ValueError(
            f"a visual token covers {cell}×{cell} pixels: resolution={resolution} is no multiple, {near} is"
        )
    images.size = {**dict(images.size), "shortest_edge": resolution**2, "longest_edge": resolution**2}
    return resolution
