"""What every guide has: a sign, a space, and `encode` and `align` into it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from eadp.compat import tensor_version
from eadp.core import TextGuide, TextLayout

Space = Literal["tower", "language"]

REMEMBERED_QUESTIONS = 32


class Guide(ABC):
    """Brings a question and visual tokens into one space, where their cosine says something.

    space: what `align` takes. "tower": states of the vision tower, without CLS: which ones, each guide says.
           "language": the projected features, as the language model receives them.
    sign:  −1 where high cosine marks the background, +1 where it marks the object. It belongs to the encoder: each
           guide gives its own and the reason, `sign=` overrides it, `eadp.diagnose_sign` measures it.
    """

    space: ClassVar[Space]

    def __init__(self, sign: float) -> None:
        if sign not in (-1, 1):
            raise ValueError(f"sign must be +1 (high cosine marks the object) or -1 (the background), got {sign}")
        self.sign = float(sign)
        self._encoded: OrderedDict[tuple[object, ...], TextGuide] = OrderedDict()

    def encode(self, question: str, layout: TextLayout = "words") -> TextGuide:
        """The question's tokens, pooled vector and words. The last few questions are remembered."""
        if not isinstance(question, str):
            raise TypeError(f"a question must be a string, got {type(question).__name__}")
        question = question.strip()
        weight = self._settle()
        key = (question, layout, self.sign, weight.device, weight.dtype, tensor_version(weight))
        if key in self._encoded:
            self._encoded.move_to_end(key)
            return self._encoded[key]
        # Not inference mode, even inside the caller's: what is remembered may meet autograd later.
        with torch.inference_mode(False), torch.no_grad():
            guide = self._encode(question, layout)
        self._encoded[key] = guide
        if len(self._encoded) > REMEMBERED_QUESTIONS:
            self._encoded.popitem(last=False)
        return guide

    def forget(self) -> None:
        """Encode each question anew, as in a new process: what a measurement must do."""
        self._encoded.clear()

    @abstractmethod
    def align(self, states: Tensor) -> Tensor:
        """[..., d] → [..., c]: visual tokens in the space of `encode`'s; nothing moves in space."""

    @abstractmethod
    def _encode(self, question: str, layout: TextLayout) -> TextGuide:
        """Encode a stripped question, perhaps empty."""

    @abstractmethod
    def _settle(self) -> Tensor:
        """Follow the model to where it is now. Gives a weight whose device, dtype and version date an encoding."""


def tokenizer_of(processor: Any) -> Any:
    """The tokenizer of a processor, or the tokenizer itself where that was given."""
    tokenizer = getattr(processor, "tokenizer", processor)
    if not callable(tokenizer) or not hasattr(tokenizer, "decode"):
        raise TypeError(f"expected a processor or a tokenizer, got {type(processor).__name__}")
    return tokenizer
