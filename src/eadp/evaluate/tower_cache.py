"""The same images are asked about with many settings: a vision tower then computes its layers once per batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import CLIPVisionModel

from eadp.models.efficientnet_lite import EfficientNetLiteModel
from eadp.runtime.probe import PROBE


class _Remembered:
    """The last input and output of a module. A module inside of which anything listens is computed again."""

    def __init__(self, module: nn.Module, by_value: bool) -> None:
        self.module, self.by_value = module, by_value
        self.forward = module.forward
        self.last: tuple[Tensor, dict[str, Any], Any] | None = None

    def __call__(self, given: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self._is_listened_to():
            return self.forward(given, *args, **kwargs)
        if self.last is None or not self._is_same(given, kwargs, *self.last[:2]):
            self.last = (given, kwargs, self.forward(given, *args, **kwargs))
        return self.last[2]

    def _is_same(self, given: Tensor, options: dict[str, Any], before: Tensor, options_before: dict[str, Any]) -> bool:
        if not self.by_value:
            return given is before
        return options == options_before and given.shape == before.shape and torch.equal(given, before)

    def _is_listened_to(self) -> bool:
        return any(_is_listened_to(part) for part in self.module.modules() if part is not self.module)


def _is_listened_to(module: nn.Module) -> bool:
    """Whether anything reads what a module computes, apart from what transformers hooks in for `output_attentions`."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    is_hooked = "forward" in vars(module) or any(not hook.__module__.startswith("transformers.") for hook in hooks)
    return is_hooked or hasattr(getattr(module, "config", None), PROBE)


def remember_images(tower: nn.Module) -> None:
    """Let a CLIP or an EfficientNet-Lite give the same outputs again while it gets the same pixels.

    Other towers are left as they are. Each layer of a CLIP keeps its last input and output. A layer whose attention a
    method reads is computed as ever, so that whatever listens to it is called.

    Args:
        tower: The tower. Nothing may change in its weights, nor in the other arguments of CLIP's layers, and nobody may
            ask a CLIP for `output_attentions`.
    """
    if isinstance(tower, EfficientNetLiteModel):
        tower.forward = _Remembered(tower, by_value=True)  # type: ignore[method-assign, assignment]
    if not isinstance(tower, CLIPVisionModel):
        return
    tower.embeddings.forward = _Remembered(tower.embeddings, by_value=True)  # type: ignore[method-assign, assignment]
    for part in (tower.pre_layrnorm, *tower.encoder.layers):
        part.forward = _Remembered(part, by_value=False)
