"""How the runtime gets into a model, and out again."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any

from torch import nn

from eadp.models.family import Seen
from eadp.models.overrides import Overrides

MARK = "_eadp"
"""Set on a base model that is being pruned: its `Pruned`."""


class Hooks(Overrides):
    """Everything that is hung into a model, with the way back."""

    def before(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        self._undo.append(module.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def after(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Runs after an exception too, with no output: what a call leaves behind must go then as well."""
        handle = module.register_forward_hook(hook, with_kwargs=True, always_call=True)
        self._undo.append(handle.remove)


SEEN = "_eadp_seen"
"""Set on the vision side's output."""


class Watch:
    """Makes `get_image_features` and `get_video_features` write on their output what they were called with.

    `generate` calls them long before the forward that uses the output, and inspects their signature; hence `wraps`.
    """

    def __init__(
        self, report: Callable[[Any], None], recording: Callable[[], Any] | None = None, keep_pixels: bool = False
    ) -> None:
        """recording: gives a context manager around an encoding, whose list becomes `Seen.attention`."""
        self._report = report
        self._keep_pixels = keep_pixels
        self._recording = recording or (lambda: nullcontext([]))
        self._busy = False

    def over(self, encode: Callable[..., Any], modality: str) -> Callable[..., Any]:
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
                lengths = [len(rows) for rows in features]
                values = pixels if self._keep_pixels else None
                seen = Seen(modality, arguments, tuple(pixels.shape), lengths, attention, values)
                object.__setattr__(output, SEEN, seen)
                self._report(output)
            return output

        return encoding
