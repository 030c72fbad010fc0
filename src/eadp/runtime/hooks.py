"""Hooks into a model, and their removal."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any

from torch import nn

from eadp.compat import tokens_per_entry
from eadp.models.overrides import Overrides
from eadp.models.vision_call import VisionCall

MARK = "_eadp"
"""Set on a base model that is being pruned: its `Pruned`."""


class Hooks(Overrides):
    """All hooks and overrides of a model, which `undo` removes."""

    def before(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Run a hook before each forward of a module."""
        self._undo.append(module.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def after(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Run a hook after each forward of a module, also after an exception, then without an output."""
        # What a call leaves on our objects must be cleared after an exception too.
        handle = module.register_forward_hook(hook, with_kwargs=True, always_call=True)
        self._undo.append(handle.remove)


VISION_CALL = "_eadp_vision_call"
"""Set on the output of the vision side: its `VisionCall`."""


class VisionCallRecorder:
    """Makes `get_image_features` and `get_video_features` note on their output what they were called with.

    `generate` calls them long before the forward that uses the output.
    """

    def __init__(
        self, report: Callable[[Any], None], recording: Callable[[], Any] | None = None, keep_pixels: bool = False
    ) -> None:
        """Set up the recorder.

        Args:
            report: Called with each output.
            recording: Makes a context manager around each call, whose list becomes `VisionCall.attention`.
            keep_pixels: Whether calls keep their pixels.
        """
        self._report = report
        self._keep_pixels = keep_pixels
        self._recording = recording or (lambda: nullcontext([]))
        self._busy = False

    def wrap(self, encode: Callable[..., Any], modality: str) -> Callable[..., Any]:
        """Wrap `get_image_features` or `get_video_features`. `generate` inspects the signature, which stays."""
        signature = inspect.signature(encode)

        @wraps(encode)
        def encoding(*args: Any, **kwargs: Any) -> Any:
            # Some models encode a clip by calling their own encoder of images: only the outer call counts.
            if self._busy:
                return encode(*args, **kwargs)
            self._busy = True
            try:
                with self._recording() as attention:
                    output = encode(*args, **kwargs)
            finally:
                self._busy = False
            if (features := getattr(output, "pooler_output", None)) is not None:
                arguments = dict(signature.bind(*args, **kwargs).arguments)
                pixels = arguments.pop("pixel_values" if modality == "image" else "pixel_values_videos")
                lengths = tokens_per_entry(features)
                kept = pixels if self._keep_pixels else None
                call = VisionCall(modality, arguments, tuple(pixels.shape), lengths, attention, kept)
                object.__setattr__(output, VISION_CALL, call)
                self._report(output)
            return output

        return encoding
