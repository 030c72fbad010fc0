"""The images of the prefills within a block, with everything that was collected for the method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from eadp.models.vision_call import EncodedImage
from eadp.runtime.vision_capture import PrefillContext, VisionCapture


@contextmanager
def encoded_images() -> Iterator[list[EncodedImage]]:
    """Collect the images of every prefill within the block; `attach` itself forgets all but their layouts."""
    images: list[EncodedImage] = []
    original = VisionCapture.context

    def context(self: VisionCapture, *args: Any) -> PrefillContext:
        found = original(self, *args)
        images.extend(placed.image for placed in found.images)
        return found

    with mock.patch.object(VisionCapture, "context", context):
        yield images
