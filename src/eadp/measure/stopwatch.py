"""Time by part: what lies within a part and has a name of its own is not counted twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from eadp.core.trace import part
from eadp.models import adapter_of
from eadp.runtime.hooks import Hooks

TOWER, LANGUAGE, REST = "vision tower", "language model", "rest"
PRUNER = ("text guide", "relevance", "smoothing", "similarity", "selection", "compaction")
PARTS = (TOWER, *PRUNER, LANGUAGE, REST)


@dataclass(frozen=True)
class Clock:
    """How time is taken. stamp: now; between: milliseconds from one stamp to another, asked when all is over."""

    name: str
    stamp: Callable[[], Any]
    between: Callable[[Any, Any], float]


def clock(name: str, device: torch.device) -> Clock:
    """`wall`, or `cpu`: the CPU time of the process, which a busy machine leaves nearly as it is.

    On a GPU, wall time is taken by events on its stream: nothing waits for them while the model runs.
    """
    if name not in ("wall", "cpu"):
        raise ValueError(f"the clock is wall or cpu, got {name!r}")
    if name == "cpu" and device.type != "cpu":
        raise ValueError(f"the clock cpu does not see what runs on {device.type}; use wall")
    if device.type == "cuda":
        return Clock(name, _event, _between_events)
    if device.type != "cpu":
        raise ValueError(f"time is taken on cpu and cuda, not on {device.type}")
    now = time.perf_counter_ns if name == "wall" else time.process_time_ns
    return Clock(name, now, lambda start, end: (end - start) / 1e6)


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between_events(start: Any, end: Any) -> float:
    end.synchronize()
    return start.elapsed_time(end)


class Stopwatch:
    """Listens to parts from its making until `stop`."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._open = [REST]
        self.running = True
        self._marks = [(clock.stamp(), REST)]

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if not self.running:
            yield
            return
        self._open.append(name)
        self._mark(name)
        try:
            yield
        finally:
            self._open.pop()
            if self.running:
                self._mark(self._open[-1])

    def _mark(self, name: str) -> None:
        """From now on it is this part's time."""
        self._marks.append((self.clock.stamp(), name))

    def stop(self) -> None:
        self._mark(REST)
        self.running = False

    @property
    def start(self) -> Any:
        return self._marks[0][0]

    @property
    def total(self) -> float:
        """Milliseconds until `stop`."""
        return self.clock.between(self.start, self._marks[-1][0])

    def parts(self) -> dict[str, float]:
        """Milliseconds of each part, which add up to `total`."""
        found = dict.fromkeys(PARTS, 0.0)
        for (start, name), (end, _) in zip(self._marks, self._marks[1:], strict=False):
            found[name] = found.get(name, 0.0) + self.clock.between(start, end)
        return found


def name_model_parts(model: Any) -> Hooks:
    """Name the model's own parts: the vision tower with its projector, the language model with its head.

    The same for the stock model and for a pruned one, which attaches on top of it.
    """
    hooks, adapter = Hooks(), adapter_of(model)
    for modality in adapter.geometry.modalities:
        name = f"get_{modality}_features"
        hooks.override(adapter.base, name, part(TOWER)(getattr(adapter.base, name)))
    for module in (adapter.text_model, model.get_output_embeddings()):
        hooks.override(module, "forward", part(LANGUAGE)(module.forward))
    return hooks
