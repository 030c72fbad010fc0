"""The state of one call. It is made when a forward of the base model begins, and is gone when it ends.

Hooks find it through a context variable, so that every thread has its own. A call that only adds tokens to a cache has
no state here: what it needs is in its arguments and on its cache. A decode step can therefore be compiled as one graph,
in which a context variable could not be read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from eadp.core import Selection, TextGuide
from eadp.core.deferred import Deferred
from eadp.models.layout import ImageLayout
from eadp.runtime.cache_map import CacheMap
from eadp.runtime.compact import Compaction
from eadp.runtime.forward_passes import PrefillPass
from eadp.runtime.settings import Settings
from eadp.runtime.vision_capture import VisionCapture


@dataclass(frozen=True)
class ShortenedCall:
    """One shortened call of the language model.

    Attributes:
        compaction: What happened to its columns.
        cache_map: What its cache has to remember.
        rotary_positions: The positions for the rotary embedding; None where the call's position ids are right for it.
    """

    compaction: Compaction
    cache_map: CacheMap
    rotary_positions: Tensor | None


@dataclass(frozen=True)
class PrefillResult:
    """What a prefill kept.

    Attributes:
        selections: One per image or clip, in the order of the prompts.
        images: Where the tokens of each of them are.
        columns: B×L, on the CPU, which columns of the prompts stayed; None before the first prefill.
    """

    selections: list[Selection] = field(default_factory=list)
    images: list[ImageLayout] = field(default_factory=list)
    columns: Deferred[Tensor | None] = field(default_factory=lambda: Deferred(lambda: None))


class ThreadResults:
    """The result of the last prefill of each thread."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._of_any = PrefillResult()

    @property
    def last(self) -> PrefillResult:
        """That of the calling thread; that of any thread if the calling one had none."""
        return getattr(self._of_thread, "result", self._of_any)

    @last.setter
    def last(self, result: PrefillResult) -> None:
        self._of_thread.result = self._of_any = result


@dataclass
class PrefillCall:
    """One forward of the base model that has images.

    Attributes:
        owner: Whose hooks made it.
        settings: How it is pruned.
        capture: The images of the forward.
        drafts: As in `ModelCall`.
        texts: The questions by row, where the method reads them; None until they are encoded.
        shortened: What happened to the call of the language model; None where it was not shortened.
        prefill: The layers of the language model, where a method prunes between them.
        result: What the prefill kept; None until the language model was called.
    """

    owner: Any
    settings: Settings
    capture: VisionCapture
    drafts: int = 0
    texts: dict[int, TextGuide] | None = None
    shortened: ShortenedCall | None = None
    prefill: PrefillPass | None = None
    result: PrefillResult | None = None


_present: ContextVar[PrefillCall | None] = ContextVar("eadp_prefill", default=None)


@contextmanager
def in_call(call: PrefillCall) -> Iterator[None]:
    """Make a call the present one of this thread within the block."""
    token = _present.set(call)
    try:
        yield
    finally:
        _present.reset(token)


def present_call(owner: Any, length: int) -> PrefillCall | None:
    """The present call of this thread.

    Args:
        owner: Whose hooks ask; the calls of other models are not theirs.
        length: How many tokens the asking module was called with.

    Returns:
        The call; None where this is no forward with images.
    """
    if torch.compiler.is_compiling() and length == 1:
        return None  # A decode step, which has to stay one graph.
    call = _present.get()
    return call if call is not None and call.owner is owner else None
