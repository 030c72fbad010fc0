"""Tiny checkpoints that accept videos, saved like real ones, and a video for them."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
from helpers import tiny, tiny_processors


def film(path: Path, frames: int = 24, side: int = 64, rate: int = 4) -> Path:
    """Write a video of noise that is the same every time."""
    noise = np.random.default_rng(0).integers(0, 255, (frames, side, side, 3), dtype=np.uint8)
    with av.open(path, "w") as file:
        stream = file.add_stream("mpeg4", rate=rate)
        stream.width = stream.height = side
        stream.pix_fmt = "yuv420p"
        for picture in noise:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode())
    return path


def save(family: str, folder: Path) -> Path:
    """Save the tiny model of a family with a processor for images and videos."""
    tiny.model(family).save_pretrained(folder)
    tiny_processors.clip_processor(family).save_pretrained(folder)
    return folder
