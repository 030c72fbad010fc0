"""Time by part of a prefill. The time of a part inside another part counts once, for the inner part."""

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
"""The parts that only a pruned model has."""

PARTS = (TOWER, *PRUNER, LANGUAGE, REST)


@dataclass(frozen=True)
class Clock:
    """A source of time stamps.

    Attributes:
        name: "wall" or "cpu".
        stamp: Returns a stamp of the present moment.
        elapsed_ms: Computes the milliseconds between two stamps. It may wait for the device, so call it only after the
            timed work.
    """

    name: str
    stamp: Callable[[], Any]
    elapsed_ms: Callable[[Any, Any], float]


def make_clock(name: str, device: torch.device) -> Clock:
    """Build a clock for a device.

    On a GPU, wall time is taken by events on its stream, so that nothing waits while the model runs.

    Args:
        name: "wall"; or "cpu" for the CPU time of the process, which hardly depends on what else the machine does.
        device: The device of the model.

    Raises:
        ValueError: If the name is unknown, or if the clock cannot measure work on this device.
    """
    if name not in ("wall", "cpu"):
        raise ValueError(f"the clock must be wall or cpu, got {name!r}")
    if name == "cpu" and device.type != "cpu":
        raise ValueError(f"the clock cpu does not measure work on {device.type}; use wall")
    if device.type == "cuda":
        return Clock(name, _record_event, _elapsed_between_events)
    if device.type != "cpu":
        raise ValueError(f"time can be measured on cpu and cuda, not on {device.type}")
    now = time.perf_counter_ns if name == "wall" else time.process_time_ns
    return Clock(name, now, lambda start, end: (end - start) / 1e6)


def _record_event() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _elapsed_between_events(start: Any, end: Any) -> float:
    end.synchronize()
    return start.elapsed_time(end)


class Stopwatch:
    """Measures the time of named parts, from its construction until `stop`.

    It is a listener of `eadp.core.trace`: `with watch(name):` assigns the time of the block to a part.
    """

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
        """Assign the time from now on to this part."""
        self._marks.append((self.clock.stamp(), name))

    def stop(self) -> None:
        """End the measurement. Parts that follow are ignored."""
        self._mark(REST)
        self.running = False

    @property
    def start(self) -> Any:
        """The stamp of the construction."""
        return self._marks[0][0]

    @property
    def total(self) -> float:
        """Milliseconds from the construction until `stop`."""
        return self.clock.elapsed_ms(self.start, self._marks[-1][0])

    def parts(self) -> dict[str, float]:
        """Compute the milliseconds of each part. They add up to `total`."""
        found = dict.fromkeys(PARTS, 0.0)
        for (start, name), (end, _) in zip(self._marks, self._marks[1:], strict=False):
            found[name] = found.get(name, 0.0) + self.clock.elapsed_ms(start, end)
        return found


def name_model_parts(model: Any) -> Hooks:
    """Name the model's own parts: the vision tower with its projector, and the language model with its head.

    The unpruned and the pruned model get the same names, because `attach` wraps what is named here.

    Returns:
        Hooks that undo the naming when they are closed.
    """
    hooks, adapter = Hooks(), adapter_of(model)
    for modality in adapter.geometry.modalities:
        name = f"get_{modality}_features"
        hooks.override(adapter.base, name, part(TOWER)(getattr(adapter.base, name)))
    for module in (adapter.text_model, model.get_output_embeddings()):
        hooks.override(module, "forward", part(LANGUAGE)(module.forward))
    return hooks
