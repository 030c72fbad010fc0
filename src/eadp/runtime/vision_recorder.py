"""What the vision side was called with, noted on its output: `generate` encodes long before the forward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any

from torch import nn

from eadp.compat import tokens_per_entry
from eadp.methods import BeforeMethod
from eadp.models.adapter import FamilyAdapter
from eadp.models.vision_call import VisionCall
from eadp.runtime.hooks import Hooks
from eadp.runtime.probe import AttentionProbe, Report
from eadp.runtime.prompts import ShownPrompt
from eadp.runtime.vision import TowerRecording, needs_pixels, recorded_layers

VISION_CALL = "_eadp_vision_call"
"""Set on the output of the vision side: its `VisionCall`."""

_recording: ContextVar[tuple[Any, TowerRecording] | None] = ContextVar("eadp_recording", default=None)
"""The recording of this thread, and the recorder that made it."""


class VisionRecorder:
    """Makes `get_image_features` and `get_video_features` note on their output what they were called with."""

    def __init__(
        self,
        adapter: FamilyAdapter,
        is_active: Callable[[], bool],
        run: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any],
        method: Callable[[], BeforeMethod],
        called_base: Callable[[], nn.Module],
        shown: Callable[[], ShownPrompt],
        report: Callable[[Any], None],
    ) -> None:
        """Set up the recorder.

        Args:
            adapter: The adapter of the model.
            is_active: Whether to record a call that begins now.
            run: Runs the vision side.
            method: Gives the method, whose `needs` say what to record.
            called_base: Gives the base model that is being called: the adapter's, or a replica of it.
            shown: Gives the prompts that the images are for, as far as they are known.
            report: Called with each output.
        """
        self.adapter = adapter
        self._is_active = is_active
        self._run = run
        self._method = method
        self._called_base = called_base
        self._shown = shown
        self._report = report
        self._probed: set[int] = set()

    def install(self, hooks: Hooks) -> None:
        """Hook into the model."""
        for modality in self.adapter.geometry.modalities:
            name = f"get_{modality}_features"
            hooks.override(self.adapter.base, name, self._wrap(name, modality))

    def probe(self, hooks: Hooks, method: BeforeMethod) -> None:
        """Probe the layers of the tower that a method asks for, unless they already are."""
        modules = self.adapter.tower_attention()
        for layer in sorted({*recorded_layers(self.adapter, method)} - self._probed):
            AttentionProbe(modules[layer], partial(self._find_report, layer)).install(hooks)
            self._probed.add(layer)

    def _find_report(self, layer: int, queries: int) -> Report | None:
        recording = _recording.get()
        return recording[1].report_at(layer) if recording is not None and recording[0] is self else None

    def _wrap(self, name: str, modality: str) -> Callable[..., Any]:
        """Wrap `get_image_features` or `get_video_features`. `generate` inspects the signature, which stays."""
        base = self.adapter.base
        former, encode = vars(base).get(name), getattr(base, name)
        signature = inspect.signature(encode)

        @wraps(encode)
        def encoding(*args: Any, **kwargs: Any) -> Any:
            called = self._called_base()
            own = encode if called is base or former is not None else partial(getattr(type(called), name), called)
            # Some models encode a clip by calling their own encoder of images: only the outer call counts.
            recording = _recording.get()
            if (recording is not None and recording[0] is self) or not self._is_active():
                return own(*args, **kwargs)
            method, shown = self._method(), self._shown()
            arguments = dict(signature.bind(*args, **kwargs).arguments)
            pixels = arguments.pop("pixel_values" if modality == "image" else "pixel_values_videos")
            # Before the tower is queued: later, reading them would wait for it.
            arguments = {key: shown.sizes.of(value) for key, value in arguments.items()}
            tower = TowerRecording(self.adapter, method)
            token = _recording.set((self, tower))
            try:
                output = self._run(own, args, kwargs)
            finally:
                _recording.reset(token)
            if (features := getattr(output, "pooler_output", None)) is not None:
                kept = pixels if needs_pixels(method) else None
                lengths = tokens_per_entry(features)
                recorded, shape = tower.recorded(), tuple(pixels.shape)
                call = VisionCall(modality, arguments, shape, lengths, recorded, kept, shown.prompt)
                object.__setattr__(output, VISION_CALL, call)
                self._report(output)
            return output

        return encoding


def vision_calls(outputs: dict[str, Any]) -> dict[str, VisionCall]:
    """The calls that outputs of the vision side came from, where they are known. outputs: by modality."""
    calls = {modality: getattr(output, VISION_CALL, None) for modality, output in outputs.items()}
    return {modality: call for modality, call in calls.items() if call is not None}


def check_recorded(call: VisionCall, layers: Sequence[int], needs_received: bool, needs_pixels: bool) -> None:
    """Check that a call of the vision side recorded what the method needs.

    Raises:
        ValueError: If it did not, because another method was attached then.
    """
    recorded = {layer.layer: layer for layer in call.attention}
    missing = [
        layer for layer in layers if layer not in recorded or (needs_received and recorded[layer].received is None)
    ]
    if missing or (needs_pixels and call.pixels is None):
        raise ValueError(
            "the images were encoded for another method, which needs less of the vision tower; encode them again"
        )
