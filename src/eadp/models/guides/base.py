"""The base class of guides: a sign, a space, and `encode` and `align` into that space."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from eadp.compat import tensor_version
from eadp.core import TextGuide, TextLayout

Space = Literal["tower", "language"]

REMEMBERED_QUESTIONS = 32
REMEMBERED_BYTES = 32 << 20
"""The largest size of a guide's cache of questions. A longer question is encoded each time."""

_LOCK = Lock()
"""Held while a guide moves to its model's device, or changes its cache: threads share guides."""


class Guide(ABC):
    """Brings a question and visual tokens into one space, where their cosine is meaningful.

    Attributes:
        space: What `align` takes. "tower": hidden states of the vision tower, without CLS; each guide says which.
            "language": the projected features, as the language model receives them.
        sign: −1 where a high cosine marks the background, +1 where it marks the object. It is a property of the
            encoder: each guide documents its own, `sign=` overrides it, and `eadp.diagnose_sign` measures it.
    """

    space: ClassVar[Space]

    def __init__(self, sign: float) -> None:
        if sign not in (-1, 1):
            raise ValueError(f"sign must be +1 (high cosine marks the object) or -1 (the background), got {sign}")
        self.sign = float(sign)
        self._encoded: OrderedDict[tuple[object, ...], TextGuide] = OrderedDict()

    def encode(self, question: str, layout: TextLayout = "words") -> TextGuide:
        """Encode a question. The last few questions are cached.

        Args:
            question: The question.
            layout: How the question is given to a text encoder of fixed length.

        Returns:
            The question's tokens, pooled vector and words.
        """
        if not isinstance(question, str):
            raise TypeError(f"a question must be a string, got {type(question).__name__}")
        question = question.strip()
        with _LOCK:
            weight = self._follow_model()
            key = (question, layout, self.sign, weight.device, weight.dtype, tensor_version(weight))
            if key in self._encoded:
                self._encoded.move_to_end(key)
                return self._encoded[key]
        # Not in inference mode, even if the caller is: the cached tensors may be used with autograd later.
        with torch.inference_mode(False), torch.no_grad():
            guide = self._encode(question, layout)
        with _LOCK:
            self._encoded[key] = guide
            while len(self._encoded) > REMEMBERED_QUESTIONS or self.remembered_bytes > REMEMBERED_BYTES:
                self._encoded.popitem(last=False)
        return guide

    @property
    def remembered_bytes(self) -> int:
        """The memory of the cached questions, in bytes."""
        return sum(map(_count_bytes, self._encoded.values()))

    def forget(self) -> None:
        """Empty the cache of questions, so that a measurement encodes each of them again."""
        self._encoded.clear()

    @abstractmethod
    def align(self, states: Tensor) -> Tensor:
        """Bring visual tokens into the space of the question: […, d] → […, c], token by token."""

    @abstractmethod
    def _encode(self, question: str, layout: TextLayout) -> TextGuide:
        """Encode a stripped question, which may be empty."""

    @abstractmethod
    def _follow_model(self) -> Tensor:
        """Move to the device and dtype of the model. Returns a weight that tells when cached encodings are outdated."""


def _count_bytes(guide: TextGuide) -> int:
    parts = [*_as_list(guide.tokens), *_as_list(guide.pooled)]
    return sum(each.numel() * each.element_size() for each in parts)


def _as_list(values: Tensor | Sequence[Tensor] | None) -> Sequence[Tensor]:
    if values is None:
        return []
    return [values] if isinstance(values, Tensor) else values


def tokenizer_of(processor: Any) -> Any:
    """The tokenizer of a processor; a tokenizer is returned as it is."""
    tokenizer = getattr(processor, "tokenizer", processor)
    if not callable(tokenizer) or not hasattr(tokenizer, "decode"):
        raise TypeError(f"expected a processor or a tokenizer, got {type(processor).__name__}")
    return tokenizer
