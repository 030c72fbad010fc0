"""A video processor without torchvision, which the video processors of transformers need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class FrameProcessor:
    """Processes each frame of a clip as an image.

    Args:
        image_processor: The processor of images. Its images must all have the same size.
    """

    def __init__(self, image_processor: Any) -> None:
        self.image_processor = image_processor

    def __call__(self, videos: Sequence[Sequence[Any]], **options: Any) -> dict[str, Any]:
        """Process clips.

        Args:
            videos: The frames of each clip: images or H×W×3 arrays. All clips have the same number of frames.
            **options: The options of a processor's video processor; `FrameProcessor` has none.

        Returns:
            `pixel_values_videos`, clips×frames×3×side×side.
        """
        clips = [self.image_processor(list(frames), return_tensors="pt")["pixel_values"] for frames in videos]
        return {"pixel_values_videos": torch.stack(clips)}
