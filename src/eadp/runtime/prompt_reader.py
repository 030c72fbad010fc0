"""Prompts are read, and their questions encoded, before the vision tower is queued, in `generate` too."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn

from eadp.compat import ENCODE_INPUTS, ENCODER_OUTPUTS
from eadp.core import TextGuide
from eadp.models.adapter import FamilyAdapter
from eadp.models.vision_call import PromptIds
from eadp.runtime.hooks import Hooks
from eadp.runtime.prompts import HostCopies, Questions, ShownPrompt, read_mask, rows_with_placeholders
from eadp.runtime.settings import Question, Settings
from eadp.runtime.vision_capture import SIZES, VisionCapture, has_images

_generating: ContextVar[tuple[Any, ShownPrompt] | None] = ContextVar("eadp_generating", default=None)
"""The prompts that `generate` encodes the images of in this thread, and the reader that read them."""


class PromptReader:
    """Reads prompts and encodes their questions."""

    def __init__(
        self,
        adapter: FamilyAdapter,
        is_active: Callable[[], bool],
        settings: Callable[[], Settings],
        question: Callable[[Question | None, int, int, Tensor | None], str],
    ) -> None:
        """Set up the reader.

        Args:
            adapter: The adapter of the model.
            is_active: Whether to read the prompts of a call that begins now.
            settings: Gives the settings for a call that begins.
            question: Gives the question of a row of the batch, from the setting and from its ids without padding.
        """
        self.adapter = adapter
        self._is_active = is_active
        self._settings = settings
        self._question = question

    def install(self, hooks: Hooks, model: nn.Module) -> None:
        """Hook into `generate` of a model, which encodes images long before it calls the model."""
        encode: Callable[..., Any] | None = getattr(model, ENCODE_INPUTS, None)
        if encode is None:
            return

        @wraps(encode)
        def encode_inputs(inputs: Any, model_kwargs: dict[str, Any], name: str | None, config: Any) -> Any:
            if name != "input_ids" or not has_images(model_kwargs) or not self._is_active():
                return encode(inputs, model_kwargs, name, config)
            token = _generating.set((self, self._show(inputs, model_kwargs, config)))
            try:
                return encode(inputs, model_kwargs, name, config)
            finally:
                _generating.reset(token)

        hooks.override(model, ENCODE_INPUTS, encode_inputs)

    def shown(self) -> ShownPrompt:
        """What is known of the prompts whose images `generate` encodes now in this thread."""
        generating = _generating.get()
        return generating[1] if generating is not None and generating[0] is self else ShownPrompt(HostCopies(()))

    def questions(self, settings: Settings) -> Callable[[int, int, Tensor | None], str]:
        """What finds the question of a row under some settings."""
        return partial(self._question, settings.question)

    def encode(self, settings: Settings, capture: VisionCapture) -> dict[int, TextGuide]:
        """Encode the questions of a forward, unless `generate` did."""
        encoded = capture.prompt.encoded
        if encoded is not None and encoded[0] is settings:
            return encoded[1]
        return self._encode(settings, capture.questions, capture.rows_with_images(), capture.device)

    def _encode(
        self, settings: Settings, questions: Questions, rows: list[int], device: torch.device
    ) -> dict[int, TextGuide]:
        """Encode the questions of some rows; nothing where the method reads none."""
        chooser = settings.chooser(self.adapter)
        if chooser.guide is None:
            return {}
        return questions.encode(partial(chooser.encode_question, device=device), rows)

    def _show(self, ids: Tensor, model_kwargs: dict[str, Any], config: Any) -> ShownPrompt:
        sizes = HostCopies(model_kwargs.get(name) for name in SIZES)
        # Token healing changes the ids later on; images that are encoded already were encoded for other prompts.
        if getattr(config, "token_healing", False) or model_kwargs.get(ENCODER_OUTPUTS):
            return ShownPrompt(sizes)
        mask, geometry, settings = model_kwargs.get("attention_mask"), self.adapter.geometry, self._settings()
        on_host = ids.cpu()
        prompt = PromptIds(on_host, None if mask is None else read_mask(mask, ids.shape[1]))
        questions = Questions(geometry, prompt, len(ids), None, self.questions(settings))
        rows = rows_with_placeholders([on_host == geometry.placeholder_id(each) for each in geometry.modalities])
        texts = self._encode(settings, questions, rows, ids.device)
        return ShownPrompt(sizes, replace(prompt, encoded=(settings, texts)))
