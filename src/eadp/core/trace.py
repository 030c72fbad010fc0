"""Report named parts of a computation to a listener, for example to measure their time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

Listener = Callable[[str], AbstractContextManager[object]]
"""Called with the name of a part; returns a context manager that is entered while the part runs."""

_listener: ContextVar[Listener | None] = ContextVar("eadp_listener", default=None)


@contextmanager
def part(name: str) -> Iterator[None]:
    """Mark a named part of a computation: `with part("similarity"): …`, or `@part("similarity")` on a function.

    Parts may be nested. Without a listener this does nothing.
    """
    listener = _listener.get()
    if listener is None:
        yield
    else:
        with listener(name):
            yield


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Enter `listener(name)` around every part that runs within the `with` block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
