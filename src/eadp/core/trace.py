"""Where the time goes: parts of a computation by their names, told to whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

Listener = Callable[[str], AbstractContextManager[object]]

_listener: ContextVar[Listener | None] = ContextVar("eadp_listener", default=None)


@contextmanager
def part(name: str) -> Iterator[None]:
    """`with part("similarity"): …`, or `@part("similarity")` on a function. Parts may lie within parts."""
    listener = _listener.get()
    if listener is None:
        yield
    else:
        with listener(name):
            yield


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within the block, `listener(name)` is entered for each part."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
