"""Everything that is hung into a model, and taken out again."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn
from transformers.utils import ModelOutput

from eadp.models.family import Seen

MARK = "_eadp"
_ABSENT = object()


class Hooks:
    """Changes to a model with the way back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []

    def before(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        self._undo.append(module.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def after(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Runs after an exception too, with no output: what a call leaves behind must go then as well."""
        handle = module.register_forward_hook(hook, with_kwargs=True, always_call=True)
        self._undo.append(handle.remove)

    def override(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of this one instance."""
        former = vars(owner).get(name, _ABSENT)
        object.__setattr__(owner, name, value)
        if former is _ABSENT:
            self._undo.append(lambda: object.__delattr__(owner, name))
        else:
            self._undo.append(lambda: object.__setattr__(owner, name, former))

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()


SEEN = "_eadp_seen"


def watched(encode: Callable[..., Any], modality: str, report: Callable[[Any], None]) -> Callable[..., Any]:
    """`get_image_features` that writes on its output what it was called with.

    `generate` calls it long before the forward that uses the output, and inspects its signature; hence `wraps`.
    """
    signature = inspect.signature(encode)

    @wraps(encode)
    def encoding(*args: Any, **kwargs: Any) -> Any:
        output = encode(*args, **kwargs)
        if isinstance(output, ModelOutput):
            arguments = dict(signature.bind(*args, **kwargs).arguments)
            pixels = arguments.pop("pixel_values", arguments.pop("pixel_values_videos", None))
            shape = tuple(pixels.shape) if pixels is not None else ()
            lengths = [len(rows) for rows in output.pooler_output]
            object.__setattr__(output, SEEN, Seen(modality, arguments, shape, lengths))
            report(output)
        return output

    return encoding
