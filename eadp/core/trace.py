"""Where the time goes: parts of a computation by name, timed only while someone listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

Listener = Callable[[str], AbstractContextManager[object]]

_listener: ContextVar[Listener | None] = ContextVar("eadp_listener", default=None)


def part(name: str) -> AbstractContextManager[object]:
    """`with part("similarity"): …` tells the listener, if there is one, when the part begins and ends."""
    listener = _listener.get()
    return nullcontext() if listener is None else listener(name)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within the block, `listener(name)` is entered for each part."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
